"""The older method, as a yardstick: one DELETE per record, eight shards, two connections.

One poller marks 100 rows at a time. Each record goes to the shard of its key, which sends it when no other record of
its key is undecided. After each acknowledgement an autocommitted DELETE removes that one record. Marks and deletes
share a pool of two connections. It is written as fast as that design allows in Python, and promises nothing.
"""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import psycopg
from confluent_kafka import Producer

SHARDS = 8
CONNECTIONS = 2
MARK = 100
WINDOW = 1000
_MARK = (
    "UPDATE outbox SET leader_id = %s WHERE id IN (SELECT id FROM outbox WHERE leader_id IS NULL OR leader_id != %s "
    "ORDER BY id LIMIT %s) RETURNING id, kafka_topic, kafka_key, kafka_value"
)


class OneByOne:
    def __init__(self, url: str, servers: str, **properties: str) -> None:
        self.purged = 0
        self._url = url
        self._connections: queue.SimpleQueue[psycopg.Connection[Any]] = queue.SimpleQueue()
        self._shards = [_Shard(self, servers, properties) for _ in range(SHARDS)]
        self._window = threading.Semaphore(WINDOW)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._mark, daemon=True)]
        for shard in self._shards:
            self._threads += [
                threading.Thread(target=shard.send, args=(self._stop, self._window), daemon=True),
                threading.Thread(target=shard.purge, args=(self._stop, self._window), daemon=True),
            ]

    def __enter__(self) -> OneByOne:
        for _ in range(CONNECTIONS):
            connection = psycopg.connect(self._url, autocommit=True)
            connection.prepare_threshold = 0
            self._connections.put(connection)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(10)
        for shard in self._shards:
            shard.settle()
        while not self._connections.empty():
            self._connections.get().close()

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        connection = self._connections.get()
        try:
            yield connection
        finally:
            self._connections.put(connection)

    def _mark(self) -> None:
        leader = uuid.uuid4()
        while not self._stop.is_set():
            with self.connection() as connection:
                rows = connection.execute(_MARK, [leader, leader, MARK]).fetchall()
            for row in sorted(rows):
                self._shards[crc32(row[2].encode()) % SHARDS].take(row, self._stop)
            if not rows:
                self._stop.wait(0.01)


class _Shard:
    def __init__(self, whole: OneByOne, servers: str, properties: dict[str, str]) -> None:
        self.rows: queue.Queue[Any] = queue.Queue(10)
        self._whole = whole
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, **properties})
        self._undecided: set[str] = set()
        self._decided = threading.Condition()

    def send(self, stop: threading.Event, window: threading.Semaphore) -> None:
        while not stop.is_set():
            try:
                id_, topic, key, value = self.rows.get(timeout=0.1)
            except queue.Empty:
                continue
            while not window.acquire(timeout=0.1):
                if stop.is_set():
                    return
            if not self._reserve(key, stop):
                return
            self._producer.produce(
                topic, value, key, on_delivery=lambda error, message, id_=id_, key=key: self._purge(id_, key, window)
            )

    def take(self, row: Any, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self.rows.put(row, timeout=0.1)
            except queue.Full:
                continue
            return

    def _reserve(self, key: str, stop: threading.Event) -> bool:
        """Wait until no record of the key is undecided."""
        with self._decided:
            while key in self._undecided:
                self._decided.wait(0.1)
                if stop.is_set():
                    return False
            self._undecided.add(key)
            return True

    def purge(self, stop: threading.Event, window: threading.Semaphore) -> None:
        while not stop.is_set():
            self._producer.poll(0.1)

    def settle(self) -> None:
        self._producer.flush(10)

    def _purge(self, id_: int, key: str, window: threading.Semaphore) -> None:
        with self._whole.connection() as connection:
            connection.execute("DELETE FROM outbox WHERE id = %s", [id_])
        window.release()
        with self._decided:
            self._undecided.discard(key)
            self._decided.notify_all()
            self._whole.purged += 1
