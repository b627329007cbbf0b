"""``manage.py outbox_resume``: see the help."""

from __future__ import annotations

from outbox.operations import actions
from outbox.operations.arguments import EXIT_CODES as EXIT_CODES
from outbox.operations.arguments import SelectingCommand


class Command(SelectingCommand):
    help = "Ends pauses; the harvester then sends the records in their order."
    operation = staticmethod(actions.resume)
