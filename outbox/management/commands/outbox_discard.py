"""``manage.py outbox_discard``: see the help."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from outbox.management.messages import SelectingCommandOfBoth
from outbox.operations import actions, held
from outbox.operations.arguments import EXIT_CODES as EXIT_CODES


class Command(SelectingCommandOfBoth):
    help = (
        "Deletes held records for good, or, with --dead-letters, dead letters. With --consumer: requests that the "
        "consumer deletes its held messages or dead letters."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--dead-letters", action="store_true", help="Deletes dead letters, and nothing that is held."
        )
        super().add_arguments(parser)

    def operation_of(self, options: dict[str, Any]) -> Any:
        return actions.discard_dead_letters if options["dead_letters"] else actions.discard

    def messages_of(self, options: dict[str, Any]) -> Any:
        return held.discard_dead_letters if options["dead_letters"] else held.discard
