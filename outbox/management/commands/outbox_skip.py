"""``manage.py outbox_skip``: see the help."""

from __future__ import annotations

from outbox.management.messages import SelectingCommandOfBoth
from outbox.operations import actions, held
from outbox.operations.arguments import EXIT_CODES as EXIT_CODES


class Command(SelectingCommandOfBoth):
    help = "Moves held records to the dead letters, so that their keys continue. With --consumer: held messages."
    operation = staticmethod(actions.skip)
    of_messages = staticmethod(held.skip)
