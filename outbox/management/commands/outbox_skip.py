"""``manage.py outbox_skip``: see the help."""

from __future__ import annotations

from outbox.operations import actions
from outbox.operations.arguments import EXIT_CODES as EXIT_CODES
from outbox.operations.arguments import SelectingCommand


class Command(SelectingCommand):
    help = "Moves held records to the dead letters, so that their keys continue."
    operation = staticmethod(actions.skip)
