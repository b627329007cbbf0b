"""A kit for the tests of applications that stash: what was stashed, and what a harvester would make of it.

It works inside Django's TestCase, whose transaction no real harvester could look into. Importing it reads no settings
and loads no models, so it can stand at the top of any test module. The pytest plugin is
``outbox.testing.pytest_plugin``.
"""

from outbox.testing.broker import Delivered, MemoryBroker, Topic
from outbox.testing.clock import Clock
from outbox.testing.kit import NotCommitted, OutboxKit
from outbox.testing.messages import ANYTHING, StashedMessage
from outbox.testing.mixin import OutboxTestMixin

__all__ = [
    "ANYTHING",
    "Clock",
    "Delivered",
    "MemoryBroker",
    "NotCommitted",
    "OutboxKit",
    "OutboxTestMixin",
    "StashedMessage",
    "Topic",
]
