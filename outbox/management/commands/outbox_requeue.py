"""``manage.py outbox_requeue``: see the help."""

from __future__ import annotations

from outbox.management.messages import SelectingCommandOfBoth
from outbox.operations import actions, held
from outbox.operations.arguments import EXIT_CODES as EXIT_CODES


class Command(SelectingCommandOfBoth):
    help = (
        "Puts dead letters back into the outbox, in their order, behind the later records of their keys. With "
        "--consumer: requests that the consumer tries its dead letters again."
    )
    operation = staticmethod(actions.requeue)
    of_messages = staticmethod(held.requeue)
