"""``manage.py outbox_journal``: journals for operators: list, show, create, append, read, reset the head."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from outbox import conf
from outbox.exceptions import OutboxError


class Command(BaseCommand):
    help = "Lists journals, shows one, appends to one, reads one, or sets its head after a failover."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        actions.add_parser("list", help="Lists the journals with their heads.")
        for action, text in (
            ("show", "Prints the journal as a JSON object."),
            ("append", "Appends what it reads from FILE, or from its input."),
            ("read", "Writes bytes of the journal to its output."),
            ("reset-head", "Sets the head of a suspect journal, behind the last byte that a store has."),
        ):
            one = actions.add_parser(action, help=text)
            one.add_argument("name", metavar="NAME", help="The name of the journal.")
            if action == "append":
                one.add_argument("file", nargs="?", metavar="FILE", help="Reads this file.")
            if action in ("read", "reset-head"):
                required = action == "reset-head"
                one.add_argument("--offset", type=int, required=required, default=0, metavar="N", help="The offset.")
            if action == "read":
                one.add_argument("--end", type=int, metavar="N", help="Stops before this offset.")
                one.add_argument("--follow", action="store_true", help="Waits for more at the head.")
            if action == "reset-head":
                one.add_argument("--yes", action="store_true", help="Does not ask for confirmation.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, f"_{options['action'].replace('-', '_')}")(options)
        except (OutboxError, conf.ConfErrors, OSError) as error:
            raise CommandError(str(error)) from error

    def _list(self, options: dict[str, Any]) -> None:
        from outbox import journal

        for state in journal.journals():
            notes = ["read-only"] * state.is_read_only + [f"suspect: {state.suspect}"] * bool(state.suspect)
            self.stdout.write(f"{state.name}: {state.head:,} bytes" + "".join(f", {note}" for note in notes))

    def _show(self, options: dict[str, Any]) -> None:
        from outbox import journal

        state = journal.show(options["name"])
        shown = {
            "name": state.name,
            "head": state.head,
            "chain": state.chain.hex(),
            "registers": dict(state.registers),
            "replicas": state.replicas,
            "stores": list(state.stores),
            "read_only": state.is_read_only,
            "suspect": state.suspect,
        }
        self.stdout.write(json.dumps(shown, indent=2))

    def _append(self, options: dict[str, Any]) -> None:
        from outbox import journal

        if options["file"]:
            with open(options["file"], "rb") as file:
                staged = journal.append(options["name"], file)
        else:
            staged = journal.append(options["name"], sys.stdin.buffer)
        begin, end = staged.offsets() or (0, 0)
        self.stdout.write(f"{begin} {end}")

    def _read(self, options: dict[str, Any]) -> None:
        from outbox import journal

        reader = journal.read(options["name"], options["offset"], options["end"], follow=options["follow"])
        for block in reader:
            sys.stdout.buffer.write(block)
            sys.stdout.buffer.flush()
        for begin, end in reader.cursor.jumps:
            self.stderr.write(f"bytes {begin} to {end} are gone")

    def _reset_head(self, options: dict[str, Any]) -> None:
        from outbox import journal

        name, offset = options["name"], options["offset"]
        state = journal.show(name)
        if not options["yes"]:
            self.stdout.write(f"{name}: the head is {state.head}. {state.suspect or 'Nothing is wrong.'}")
            if input(f"Set the head to {offset}? Type the name of the journal: ") != name:
                raise CommandError("The head stays as it is.")
        journal.reset_head(name, offset)
        self.stdout.write(f"{name}: the next append begins at {offset}")
