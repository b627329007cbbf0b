"""The message that a processor's function gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outbox.consumers.message import ConsumedMessage, text
from outbox.core.consumers.values import Fetched


class StepMessage(ConsumedMessage):
    """A message of Kafka. All messages of a step have the same `step` and `attempt`."""

    __slots__ = ("_step",)

    def __init__(
        self,
        fetched: Fetched,
        processor: str,
        step: str,
        attempt: int = 1,
        decoder: Callable[[bytes], Any] = text,
    ) -> None:
        super().__init__(fetched, processor, attempt, decoder)
        self._step = step

    @property
    def step(self) -> str:
        """The same for every attempt at this step, on every host, and no other's: for a join, of all of its messages
        together. Send it to other services as an idempotency key."""
        return self._step
