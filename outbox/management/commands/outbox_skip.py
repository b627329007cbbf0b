"""``manage.py outbox_skip``: see the help."""

from __future__ import annotations

from outbox.operations import actions
from outbox.operations.arguments import EXIT_CODES as EXIT_CODES
from outbox.operations.arguments import SelectingCommand


class Command(SelectingCommand):
    help = "Move records that were refused to the dead letters; their keys go on."
    operation = staticmethod(actions.skip)
