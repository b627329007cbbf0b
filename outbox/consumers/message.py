"""The message that a consumer's function gets."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from outbox.core.consumers.values import Fetched
from outbox.core.steps import step
from outbox.messages.consumed import Identity, identity


def text(value: bytes) -> str:
    """The decoder of a consumer that names none."""
    return value.decode()


class ConsumedMessage:
    """A message of Kafka. Key, value and headers are decoded when they are asked for."""

    __slots__ = ("_consumer", "_decoder", "attempt", "is_replay", "raw")

    def __init__(
        self,
        fetched: Fetched,
        consumer: str,
        attempt: int = 1,
        decoder: Callable[[bytes], Any] = text,
        is_replay: bool = False,
    ) -> None:
        self.raw = fetched
        """As the client returned it: `raw.key` and `raw.value` are bytes."""
        self.attempt = attempt
        """1 for the first one."""
        self.is_replay = is_replay
        """The consumer has handled it before, and an operator lets it be handled once more."""
        self._consumer = consumer
        self._decoder = decoder

    @property
    def topic(self) -> str:
        return self.raw.topic

    @property
    def partition(self) -> int:
        return self.raw.partition

    @property
    def offset(self) -> int:
        return self.raw.offset

    @property
    def key(self) -> str | None:
        """None: the message has no key. Raises UnicodeDecodeError for what is not UTF-8."""
        return None if self.raw.key is None else self.raw.key.decode()

    @property
    def value(self) -> Any:
        """What the consumer's decoder makes of it, text by default; None: a tombstone."""
        return None if self.raw.value is None else self._decoder(self.raw.value)

    def json(self) -> Any:
        """The value read as JSON, whatever the decoder is."""
        if self.raw.value is None:
            raise ValueError(f"{self} is a tombstone: it has no value. Check message.value for None first.")
        return json.loads(self.raw.value)

    @property
    def headers(self) -> tuple[tuple[str, str | None], ...]:
        """Pairs in their order; names may repeat. Bytes that are not UTF-8 become surrogates."""
        return tuple(
            (name, None if value is None else value.decode(errors="surrogateescape"))
            for name, value in self.raw.headers
        )

    def header(self, name: str) -> str | None:
        """The last header of that name."""
        return next((value for found, value in reversed(self.headers) if found == name), None)

    @property
    def time(self) -> datetime | None:
        """When it was produced, or when the broker stored it, as the topic is configured."""
        milliseconds = self.raw.timestamp_ms
        return None if milliseconds < 0 else datetime.fromtimestamp(milliseconds / 1000, UTC)

    @property
    def identity(self) -> Identity | None:
        """Which record of an outbox it was; None when no exactly-once harvester has sent it."""
        return identity(self.raw.headers)

    @property
    def step(self) -> str:
        """The same for every attempt to handle this message with this consumer, and no other's."""
        return step(self._consumer, self.raw.topic, self.raw.partition, self.raw.offset)

    def __str__(self) -> str:
        return f"{self.raw.topic}[{self.raw.partition}] offset {self.raw.offset}"

    def __repr__(self) -> str:
        return f"<ConsumedMessage {self}>"
