"""``manage.py outbox_retry``: see the help."""

from __future__ import annotations

from outbox.management.messages import SelectingCommandOfBoth
from outbox.operations import actions, held
from outbox.operations.arguments import EXIT_CODES as EXIT_CODES


class Command(SelectingCommandOfBoth):
    help = "Requests that the harvester retries held records now, or with --consumer the consumer held messages."
    operation = staticmethod(actions.retry)
    of_messages = staticmethod(held.retry)
