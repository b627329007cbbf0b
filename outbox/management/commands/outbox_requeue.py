"""``manage.py outbox_requeue``: see the help."""

from __future__ import annotations

from outbox.operations import actions
from outbox.operations.arguments import EXIT_CODES as EXIT_CODES
from outbox.operations.arguments import SelectingCommand


class Command(SelectingCommand):
    help = "Put dead letters back into the outbox, in their order, behind what their keys have sent since."
    operation = staticmethod(actions.requeue)
