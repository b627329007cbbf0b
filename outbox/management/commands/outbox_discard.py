"""``manage.py outbox_discard``: see the help."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from outbox.operations import actions
from outbox.operations.arguments import EXIT_CODES as EXIT_CODES
from outbox.operations.arguments import SelectingCommand


class Command(SelectingCommand):
    help = "Deletes held records for good, or, with --dead-letters, dead letters."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--dead-letters", action="store_true", help="Deletes dead letters, and no held record.")
        super().add_arguments(parser)

    def operation_of(self, options: dict[str, Any]) -> Any:
        return actions.discard_dead_letters if options["dead_letters"] else actions.discard
