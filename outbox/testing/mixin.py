"""The kit as methods of a test case, for unittest and Django's TestCase."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outbox.testing.broker import Delivered, MemoryBroker
from outbox.testing.consumers import Handled
from outbox.testing.kit import OutboxKit
from outbox.testing.messages import StashedMessage


class OutboxTestMixin:
    """Put it before the test case: ``class OrderTests(OutboxTestMixin, TestCase)``.

    Each test gets a kit at first use, so you need no ``setUp``. `outbox_using` is the alias of the database, if it is
    not the one of the settings.
    """

    outbox_using: str | None = None

    @property
    def outbox(self) -> OutboxKit:
        """Return the kit of this test. unittest makes an instance per test method."""
        kit: OutboxKit | None = self.__dict__.get("_outbox_kit")
        if kit is None:
            kit = self.__dict__["_outbox_kit"] = OutboxKit(using=self.outbox_using)
        return kit

    @property
    def stashed(self) -> list[StashedMessage]:
        return self.outbox.stashed

    @property
    def broker(self) -> MemoryBroker:
        return self.outbox.broker

    def assert_stashed(self, topic: str, **expected: Any) -> StashedMessage:
        __tracebackhide__ = True
        return self.outbox.assert_stashed(topic, **expected)

    def assert_nothing_stashed(self, topic: str | None = None) -> None:
        __tracebackhide__ = True
        self.outbox.assert_nothing_stashed(topic)

    def harvest_all(self) -> list[Delivered]:
        return self.outbox.harvest_all()

    def deliver(self, consumer: str | Callable[[Any], Any], value: Any = None, **given: Any) -> Handled:
        return self.outbox.deliver(consumer, value, **given)

    def run_chain(self, *, rounds: int = 50) -> dict[str, list[Handled]]:
        return self.outbox.run_chain(rounds=rounds)

    def advance(self, seconds: float) -> None:
        self.outbox.advance(seconds)
