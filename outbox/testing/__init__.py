"""A kit for the tests of applications that stash: it shows stashed messages and the deliveries of a harvester.

It works inside Django's TestCase, whose transaction no real harvester can read. Importing it reads no settings and
loads no models, so any test module can import it at its top. The pytest plugin is ``outbox.testing.pytest_plugin``.
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
