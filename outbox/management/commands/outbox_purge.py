"""``manage.py outbox_purge``: see the help."""

from __future__ import annotations

from outbox.operations import actions
from outbox.operations.arguments import EXIT_CODES as EXIT_CODES
from outbox.operations.arguments import SelectingCommand


class Command(SelectingCommand):
    help = "Delete dead letters for good, usually those of some age."
    operation = staticmethod(actions.purge)
