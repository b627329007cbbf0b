"""``manage.py outbox_positions``: show where consumers read next, or set it while no process of them runs."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import Error as DatabaseError

from outbox import conf as settings
from outbox.exceptions import OutboxError
from outbox.operations import positions
from outbox.operations.arguments import actor_of, add_common

EXIT_CODES = {0: "shown, or set as requested", 1: "refused, for the reason named: nothing was changed"}


class Command(BaseCommand):
    help = "Shows the positions of consumers and their lag, or sets the positions of one consumer in a topic."

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_common(parser, database="The database alias, in place of those of the consumers.")
        parser.epilog = "Exit codes: " + "; ".join(f"{code}: {text}" for code, text in EXIT_CODES.items()) + "."
        parser.add_argument("consumer", nargs="?", metavar="NAME", help="Shows this consumer only.")
        parser.add_argument("--topic", help="The topic, with --to.")
        parser.add_argument("--partition", type=int, metavar="N", help="Sets this partition only, with --to.")
        parser.add_argument(
            "--to",
            metavar="OFFSET|earliest|latest|TIME",
            help="Sets the position. Needs NAME and --topic. TIME is an ISO time, with its offset or in TIME_ZONE: the "
            "position is then the first message that is not older.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        from outbox.consumers.registry import registered

        try:
            conf = settings.current()
            declared = {name: one.using or conf.database for name, one in registered().items()}
            if options["to"] is None:
                found = positions.show(conf, declared, options["consumer"], database=options["database"])
                self._show(found, as_json=options["json"])
            else:
                self._set(conf, declared, options)
        except (OutboxError, settings.ConfErrors, ImportError) as error:
            raise CommandError(str(error)) from error
        except DatabaseError as error:
            raise CommandError(f"PostgreSQL: {str(error).strip()} (Run: python manage.py migrate outbox)") from error

    def _show(self, found: list[positions.ShownPosition], *, as_json: bool) -> None:
        if as_json:
            self.stdout.write(json.dumps({"positions": [one.as_dict() for one in found]}))
            return
        for one in found:
            side = f"the topic holds {one.first} to {one.end}" if one.end is not None else "Kafka does not say"
            place = f"{one.consumer}: {one.topic}[{one.partition}]"
            self.stdout.write(f"{place} next {one.next}, {_lag(one)}, {side}")
        if not found:
            self.stdout.write("No consumer has a position.")

    def _set(self, conf: settings.Conf, declared: Mapping[str, str], options: dict[str, Any]) -> None:
        if not options["consumer"] or not options["topic"]:
            raise CommandError("--to needs the NAME of a consumer and --topic.", returncode=2)
        changed = positions.set_positions(
            conf,
            declared,
            options["consumer"],
            options["topic"],
            positions.to_of(options["to"], datetime.now(UTC)),
            partition=options["partition"],
            actor=actor_of(options),
            reason=options["reason"],
            dry_run=options["dry_run"],
            database=options["database"],
        )
        if options["json"]:
            numbers = {partition.number: list(values) for partition, values in changed.items()}
            self.stdout.write(json.dumps({"changed": not options["dry_run"], "positions": numbers}))
            return
        for (topic, number), (before, after) in changed.items():
            verb = "would be set" if options["dry_run"] else "was set"
            self.stdout.write(f"{topic}[{number}] {verb} from {'no position' if before is None else before} to {after}")


def _lag(one: positions.ShownPosition) -> str:
    if one.is_other_topic:
        return "the topic was created again"
    if one.lag is None:
        return "lag unknown"
    said = f"unknown time: {one.lag_s_unknown}" if one.lag_s is None else f"{one.lag_s:,.1f} s"
    return f"lag {one.lag:,} {'message' if one.lag == 1 else 'messages'} and {said}"
