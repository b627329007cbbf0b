"""``manage.py outbox_discard``: see the help."""

from __future__ import annotations

from outbox.operations import actions
from outbox.operations.arguments import EXIT_CODES as EXIT_CODES
from outbox.operations.arguments import SelectingCommand


class Command(SelectingCommand):
    help = "Delete held records and dead letters for good."
    operation = staticmethod(actions.discard)
