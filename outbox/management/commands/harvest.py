"""``manage.py harvest``: arguments to settings to the harvest room."""

from argparse import ArgumentParser
from contextlib import closing
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from outbox import conf
from outbox.exceptions import OutboxError


class Command(BaseCommand):
    help = "Move records from the outbox table to Kafka."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--once",
            action="store_true",
            help="Move what is visible now, then exit 0. Required: the daemon is not part of this version.",
        )

    def handle(self, *args: Any, once: bool, **options: Any) -> None:
        if not once:
            raise CommandError("This version harvests on demand only. Run: manage.py harvest --once")
        from outbox.edges import table
        from outbox.harvest.once import drain

        settings = conf.current()
        try:
            with closing(table.connect(settings.database)) as connection:
                drained = drain(table.Table(connection, settings.table), settings, self._progress)
        except OutboxError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"delivered={drained.delivered} batches={drained.batches}")

    def _progress(self, delivered: int) -> None:
        if self.stderr.isatty():
            self.stderr.write(f"\rdelivered {delivered:,}", ending="")
