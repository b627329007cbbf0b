"""A kit for the tests of applications: it shows what they stash, harvests it, and delivers messages to their consumers.

It works inside Django's TestCase, whose transaction no real harvester can read. Importing it reads no settings and
loads no models, so any test module can import it at its top. The pytest plugin is ``outbox.testing.pytest_plugin``.
"""

from outbox.consumers.work.worker import ConsumerStopped
from outbox.testing.broker import Delivered, MemoryBroker, Topic
from outbox.testing.clock import Clock
from outbox.testing.consumers import EndlessChain, Handled, TransactionRefused
from outbox.testing.kit import OutboxKit
from outbox.testing.messages import ANYTHING, StashedMessage
from outbox.testing.mixin import OutboxTestMixin
from outbox.testing.table import NotCommitted

__all__ = [
    "ANYTHING",
    "Clock",
    "ConsumerStopped",
    "Delivered",
    "EndlessChain",
    "Handled",
    "MemoryBroker",
    "NotCommitted",
    "OutboxKit",
    "OutboxTestMixin",
    "StashedMessage",
    "Topic",
    "TransactionRefused",
]
