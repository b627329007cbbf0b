"""``manage.py outbox_requeue``: see the help."""

from __future__ import annotations

from outbox.operations import actions
from outbox.operations.arguments import EXIT_CODES as EXIT_CODES
from outbox.operations.arguments import SelectingCommand


class Command(SelectingCommand):
    help = "Puts dead letters back into the outbox, in their order, behind the later records of their keys."
    operation = staticmethod(actions.requeue)
