"""Independent readers of a topic: they see what a read_committed consumer sees, and note when."""

from __future__ import annotations

import multiprocessing
import time
import uuid
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.servers import PARTITIONS

_SILENCE_S = 60.0


def _consumer(servers: str, topic: str, offset: int, **properties: Any) -> Any:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error" if offset == 0 else "latest",
            **properties,
        }
    )
    consumer.assign([TopicPartition(topic, number, offset) for number in range(PARTITIONS)])
    return consumer


def check(servers: str, topic: str, records: int) -> int:
    """Check that every record is there once and every key in order. Returns the number of keys. Values begin with 1, 2,
    ..."""
    consumer = _consumer(servers, topic, 0, **{"enable.partition.eof": True})
    unfinished, last, seen = set(range(PARTITIONS)), dict[bytes, int](), 0
    while unfinished:
        for message in consumer.consume(10_000, 1.0):
            error = message.error()
            if error is not None:
                assert error.name() == "_PARTITION_EOF", error
                unfinished.discard(message.partition())
                continue
            key, number = message.key(), int(message.value()[:12].rstrip(b"x"))
            assert number > last.get(key, 0), f"key {key!r} went from {last.get(key)} to {number}"
            last[key] = number
            seen += 1
    consumer.close()
    assert seen == records, f"only {seen} of {records} records arrived"
    return len(last)


class Watch:
    """A consumer in a process of its own, which notes when it saw each record, by the machine's monotonic clock."""

    def __init__(self, servers: str, topic: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_watch, args=(servers, topic, other), daemon=True)
        self._process.start()
        assert self._pipe.poll(_SILENCE_S), "the watching consumer did not start"
        self._pipe.recv()

    def seen(self, count: int) -> dict[int, float]:
        """The time at which each value (a number) was first seen; waits for this many of them."""
        self._pipe.send(count)
        assert self._pipe.poll(2 * _SILENCE_S), "the watching consumer died"
        found: dict[int, float] = self._pipe.recv()
        self._process.join(5)
        return found


def _watch(servers: str, topic: str, pipe: Connection) -> None:
    consumer = _consumer(servers, topic, 0, **{"fetch.wait.max.ms": 500})
    consumer.poll(0.5)
    pipe.send("ready")
    seen: dict[int, float] = {}
    wanted, give_up_at = None, float("inf")
    while (wanted is None or len(seen) < wanted) and time.monotonic() < give_up_at:
        message = consumer.poll(0.05)
        if message is not None and message.error() is None:
            seen.setdefault(int(message.value()), time.monotonic())
        if wanted is None and pipe.poll():
            wanted, give_up_at = pipe.recv(), time.monotonic() + _SILENCE_S
    pipe.send(seen)
    consumer.close()
