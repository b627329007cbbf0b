"""``manage.py outbox_stats``: shows the state of the outbox in numbers, and changes nothing."""

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

EXIT_CODES = {
    0: "the command has shown the numbers",
    1: "the settings are wrong, or the command cannot read PostgreSQL or the table",
}


class Command(BaseCommand):
    help = "Shows the backlog, the owner of each lane, and the batches of table and ledger, and changes nothing."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = "Exit codes: " + "; ".join(f"{code}: {text}" for code, text in EXIT_CODES.items()) + "."
        parser.add_argument("--database", metavar="ALIAS", help="The database alias, in place of DATABASE.")
        parser.add_argument("--json", action="store_true", help="Prints one JSON object.")
        parser.add_argument("--no-kafka", action="store_true", help="Asks only the database.")
        parser.add_argument(
            "--interval",
            type=float,
            default=1.0,
            metavar="SECONDS",
            help="Reads the counts twice, this long apart, and shows rates (1 s). 0: shows no rates.",
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
