"""An in-memory Kafka for tests: topics, partitions, offsets, rejections, and outages on demand.

It receives messages in the form in which the harvester's producer sends them. The same suite of tests runs on it and on
a real Kafka, so the two behave alike. Compression is the one difference: a real broker checks the compressed size.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

MAX_MESSAGE_BYTES = 1_048_588  # of a topic, unless configured otherwise
OVERHEAD_BYTES = 80  # of a batch with one record


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message as a consumer sees it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp: datetime
    record_id: int
    """The id of the record in the table."""

    def json(self) -> Any:
        """The value read as JSON."""
        if self.value is None:
            raise ValueError(
                f"The message {self.topic}[{self.partition}]@{self.offset} is a tombstone: it has no value."
            )
        return json.loads(self.value)

    def header(self, name: str) -> bytes | None:
        """The first header of that name."""
        return next((value for found, value in self.headers if found == name), None)


@dataclass(slots=True)
class Topic:
    partitions: int = 1
    max_message_bytes: int = MAX_MESSAGE_BYTES
    is_writable: bool = True
    """Whether the user may write to it."""
    messages: list[Delivered] = field(default_factory=list)


class Refused(Exception):
    """The broker has rejected this message; `name` is the client's name of the error."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        super().__init__(f"{name}: {text}")


class Unavailable(Exception):
    """The broker does not answer."""


class MemoryBroker:
    """Creates topics at first use, unless `auto_create_topics` is False."""

    def __init__(self, *, auto_create_topics: bool = True) -> None:
        self.auto_create_topics = auto_create_topics
        self.topics: dict[str, Topic] = {}
        self.is_up = True
        self._received: list[Delivered] = []
        self._ends: dict[tuple[str, int], int] = {}

    def create_topic(self, name: str, partitions: int = 1, *, max_message_bytes: int = MAX_MESSAGE_BYTES) -> Topic:
        if name in self.topics:
            raise ValueError(f"The topic {name!r} exists already. Delete it first, or use topics[{name!r}].")
        topic = self.topics[name] = Topic(partitions, max_message_bytes)
        return topic

    def delete_topic(self, name: str) -> None:
        del self.topics[name]
        self._received = [message for message in self._received if message.topic != name]
        self._ends = {partition: end for partition, end in self._ends.items() if partition[0] != name}

    def deny(self, name: str) -> None:
        """Stop the user from writing to the topic, until `allow`."""
        self.topics.setdefault(name, Topic()).is_writable = False

    def allow(self, name: str) -> None:
        self.topics.setdefault(name, Topic()).is_writable = True

    def stop(self) -> None:
        """Start an outage: the broker neither accepts nor rejects messages."""
        self.is_up = False

    def start(self) -> None:
        self.is_up = True

    def messages(self, topic: str | None = None) -> list[Delivered]:
        """Return the received messages of one topic or of all, in the order of arrival."""
        if topic is None:
            return list(self._received)
        return list(self.topics[topic].messages) if topic in self.topics else []

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]],
        *,
        record_id: int,
        timestamp: datetime,
    ) -> Delivered:
        """Append a message, or raise `Refused` or `Unavailable`."""
        if not self.is_up:
            raise Unavailable("the test has stopped the broker")
        found = self._writable(topic)
        size = OVERHEAD_BYTES + sum(len(part or b"") for part in (key, value)) + _size(headers)
        if size > found.max_message_bytes:
            raise Refused(
                "MSG_SIZE_TOO_LARGE", f"the message has {size:,} bytes, over {found.max_message_bytes:,} of the topic"
            )
        partition = partition_of(key, found.partitions, len(found.messages))
        offset = self.take_offset(topic, partition)
        message = Delivered(topic, partition, offset, key, value, tuple(headers), timestamp, record_id)
        found.messages.append(message)
        self._received.append(message)
        return message

    def take_offset(self, topic: str, partition: int, offset: int | None = None) -> int:
        """Return the next offset of the partition, or the given one. Messages that are received later get others."""
        end = self._ends.get((topic, partition), 0)
        found = end if offset is None else offset
        self._ends[topic, partition] = max(end, found + 1)
        return found

    def _writable(self, name: str) -> Topic:
        if name not in self.topics and self.auto_create_topics:
            self.topics[name] = Topic()
        if name not in self.topics:
            raise Refused("UNKNOWN_TOPIC_OR_PART", f"the topic {name!r} does not exist")
        if not self.topics[name].is_writable:
            raise Refused("TOPIC_AUTHORIZATION_FAILED", f"the user may not write to {name!r}")
        return self.topics[name]


def _size(headers: Sequence[tuple[str, bytes]]) -> int:
    return sum(len(name.encode()) + len(value) for name, value in headers)


def partition_of(key: bytes | None, partitions: int, turn: int = 0) -> int:
    """Return the partition that Java clients, Spark and the harvester choose for a key. Without a key, `turn` chooses
    it."""
    return turn % partitions if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """As in org.apache.kafka.common.utils.Utils, on unsigned numbers."""
    factor, mask = 0x5BD1E995, 0xFFFFFFFF
    whole = len(data) // 4 * 4
    hashed = 0x9747B28C ^ len(data)
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * factor & mask
        hashed = (hashed * factor & mask) ^ ((word ^ word >> 24) * factor & mask)
    if rest := data[whole:]:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * factor & mask
    hashed = (hashed ^ hashed >> 13) * factor & mask
    return hashed ^ hashed >> 15
