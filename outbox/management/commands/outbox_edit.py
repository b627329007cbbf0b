"""``manage.py outbox_edit``: changes a record that is held, pending or dead."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from outbox.management.messages import alias_of_messages
from outbox.operations import actions, held
from outbox.operations.arguments import EXIT_CODES as EXIT_CODES
from outbox.operations.arguments import add_common, given_of, run, shown
from outbox.operations.outcomes import Outcome


class Command(BaseCommand):
    help = (
        "Changes a record that is held, pending or dead, and has it sent. If it is not dead, the command holds its key "
        "until its lane has confirmed that the record is not in flight. With --consumer: changes a held message or a "
        "dead letter of the consumer, and requests that the consumer tries it. Its topic and key stay."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--id", type=int, required=True, metavar="ID", help="The id that the record has, or had, in the outbox."
        )
        parser.add_argument(
            "--consumer",
            metavar="NAME",
            help="The consumer of the message. --id is then the id that outbox_held prints.",
        )
        parser.add_argument("--to-topic", metavar="TOPIC", help="Changes the topic.")
        parser.add_argument("--to-key", metavar="KEY", help="Changes the key.")
        ways = parser.add_mutually_exclusive_group()
        ways.add_argument("--value", help="The new value, as text.")
        ways.add_argument(
            "--value-file",
            metavar="FILE",
            help="A UTF-8 file with the new value; -: standard input. With --consumer: any bytes.",
        )
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
        self.stdout.write(shown(run(lambda: _edited(options)), options))


def _edited(options: dict[str, Any]) -> Outcome:
    if options["consumer"] is None:
        wait_s = max(0.0, options["wait"])
        return actions.edit(record_id=options["id"], changes=_changes(options), wait_s=wait_s, **given_of(options))
    given = {**given_of(options), "alias": alias_of_messages(options)}
    return held.edit(options["id"], _changes(options), consumer=options["consumer"], **given)


def _changes(options: dict[str, Any]) -> dict[str, Any]:
    given = {"topic": options["to_topic"], "key": options["to_key"], "value": options["value"]}
    changes = {name: value for name, value in given.items() if value is not None}
    if options["value_file"]:
        raw = _read(options["value_file"])
        changes["value"] = raw if options["consumer"] is not None else _text(options["value_file"], raw)
    if options["tombstone"]:
        changes["value"] = None
    if options["header"]:
        changes["headers"] = tuple(_pair(text) for text in options["header"])
    elif options["no_headers"]:
        changes["headers"] = ()
    return changes


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise CommandError(f"The file {name} cannot be read: {error}. Name a readable file.") from error


def _text(name: str, raw: bytes) -> str:
    try:
        return raw.decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise CommandError(f"The file {name} cannot be read: {error}. Name a readable UTF-8 file.") from error


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise CommandError(f"--header {text!r} is not a header. Write NAME=VALUE.")
    return name, value
