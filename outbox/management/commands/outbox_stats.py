"""``manage.py outbox_stats``: the state of the outbox in numbers; nothing is changed."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

import psycopg
from django.core.management.base import BaseCommand, CommandError

from outbox import conf as settings
from outbox.conf.secrets import Redactor
from outbox.exceptions import OutboxError
from outbox.operations import stats

EXIT_CODES = {0: "shown", 1: "the settings are wrong, or PostgreSQL or the table cannot be read"}


class Command(BaseCommand):
    help = "Show what waits, who owns which lane, and how far table and ledger are apart. Nothing is changed."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = "Exit codes: " + "; ".join(f"{code}: {text}" for code, text in EXIT_CODES.items()) + "."
        parser.add_argument("--database", metavar="ALIAS", help="Alias of the database, instead of DATABASE.")
        parser.add_argument("--json", action="store_true", help="Print one JSON object.")
        parser.add_argument("--no-kafka", action="store_true", help="Ask the database alone.")
        parser.add_argument(
            "--interval",
            type=float,
            default=1.0,
            metavar="SECONDS",
            help="Look twice and show the rates between (1 s); 0: look once, show none.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            conf = settings.current()
            found = stats.collect(
                conf,
                options["database"] or conf.database,
                with_kafka=not options["no_kafka"],
                interval_s=max(0.0, options["interval"]),
            )
        except (OutboxError, psycopg.Error, settings.ConfErrors) as error:
            raise CommandError(str(error)) from error
        found = Redactor(conf.kafka.client_properties, conf.producer_properties).all(found)
        lines = [json.dumps(found)] if options["json"] else stats.as_text(found)
        for line in lines:
            self.stdout.write(line)
