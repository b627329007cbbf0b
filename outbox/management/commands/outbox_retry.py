"""``manage.py outbox_retry``: see the help."""

from __future__ import annotations

from outbox.operations import actions
from outbox.operations.arguments import EXIT_CODES as EXIT_CODES
from outbox.operations.arguments import SelectingCommand


class Command(SelectingCommand):
    help = "Requests that the harvester retries held records now."
    operation = staticmethod(actions.retry)
