"""``manage.py outbox_edit``: change what a record says, wherever it waits."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from outbox.operations import actions
from outbox.operations.arguments import EXIT_CODES as EXIT_CODES
from outbox.operations.arguments import add_common, given_of, run, shown


class Command(BaseCommand):
    help = (
        "Change a record that is held, waits or is dead, and have it sent. The key of one that is not dead is held "
        "until its lane has confirmed that the record is not on its way."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--id", type=int, required=True, metavar="ID", help="The record's id in the outbox.")
        parser.add_argument("--to-topic", metavar="TOPIC", help="Send it to this topic.")
        parser.add_argument("--to-key", metavar="KEY", help="Send it under this key.")
        ways = parser.add_mutually_exclusive_group()
        ways.add_argument("--value", help="The new value, as text.")
        ways.add_argument("--value-file", metavar="FILE", help="The new value from a file of UTF-8; -: standard input.")
        ways.add_argument("--tombstone", action="store_true", help="Send no value.")
        parser.add_argument(
            "--header", action="append", metavar="NAME=VALUE", help="All headers anew; may be repeated."
        )
        parser.add_argument("--no-headers", action="store_true", help="Send no headers.")
        parser.add_argument(
            "--wait", type=float, default=30.0, metavar="SECONDS", help="How long to wait for the lane (30)."
        )
        add_common(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        changes = _changes(options)
        outcome = run(
            lambda: actions.edit(
                record_id=options["id"], changes=changes, wait_s=max(0.0, options["wait"]), **given_of(options)
            )
        )
        self.stdout.write(shown(outcome, options))


def _changes(options: dict[str, Any]) -> dict[str, Any]:
    given = {"topic": options["to_topic"], "key": options["to_key"], "value": options["value"]}
    changes = {name: value for name, value in given.items() if value is not None}
    if options["value_file"]:
        changes["value"] = _read(options["value_file"])
    if options["tombstone"]:
        changes["value"] = None
    if options["header"]:
        changes["headers"] = tuple(_pair(text) for text in options["header"])
    elif options["no_headers"]:
        changes["headers"] = ()
    return changes


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{name}: {error}") from error


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise CommandError(f"{text!r} is no header: write NAME=VALUE.")
    return name, value
