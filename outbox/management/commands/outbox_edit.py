"""``manage.py outbox_edit``: changes a record that is held, pending or dead."""

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
        "Changes a record that is held, pending or dead, and has it sent. If it is not dead, the command holds its key "
        "until its lane has confirmed that the record is not in flight."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--id", type=int, required=True, metavar="ID", help="The id that the record has, or had, in the outbox."
        )
        parser.add_argument("--to-topic", metavar="TOPIC", help="Changes the topic.")
        parser.add_argument("--to-key", metavar="KEY", help="Changes the key.")
        ways = parser.add_mutually_exclusive_group()
        ways.add_argument("--value", help="The new value, as text.")
        ways.add_argument("--value-file", metavar="FILE", help="A UTF-8 file with the new value; -: standard input.")
        ways.add_argument("--tombstone", action="store_true", help="Removes the value.")
        parser.add_argument(
            "--header", action="append", metavar="NAME=VALUE", help="Replaces all headers. Repeat it for more."
        )
        parser.add_argument("--no-headers", action="store_true", help="Removes all headers.")
        parser.add_argument(
            "--wait", type=float, default=30.0, metavar="SECONDS", help="The time to wait for the lane (30)."
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
        raise CommandError(f"The file {name} cannot be read: {error}. Name a readable UTF-8 file.") from error


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise CommandError(f"--header {text!r} is not a header. Write NAME=VALUE.")
    return name, value
