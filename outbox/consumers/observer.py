"""Once every few seconds: how far the partitions of this process are behind, for metrics, the status line and the
table `<TABLE>_partition`.

It is one thread of the process. Neither a member nor a worker ever waits for it, and nothing depends on what it finds.

Kafka is asked, in place of the client's own knowledge: the client knows the end of the log and not the last stable
offset, and learns nothing of partitions that are paused or stopped. These are the ones that operators look for.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

import psycopg

from outbox.core.consumers.shown import Earlier, MessageCounts, Observed, ShownPartition, shown
from outbox.core.consumers.values import Partition
from outbox.exceptions import NotAvailable
from outbox.runtime import Runtime, Thread
from outbox.runtime.threads import THREADS

logger = logging.getLogger("outbox.consumers")

EVERY_S = 5.0
FIRST_S = 1.0


class Watched(Protocol):
    """One consumer of the process."""

    @property
    def name(self) -> str: ...

    @property
    def observed(self) -> Sequence[Observed]: ...


class EndsPort(Protocol):
    def ends(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The last stable offsets, of those whose broker answers. Raises `NotAvailable` while none does."""
        ...


class RowsPort(Protocol):
    """One database. Every wait is bounded."""

    def write(self, consumer: str, rows: Sequence[ShownPartition]) -> None:
        """One statement. Raises what PostgreSQL says."""
        ...

    def counts(self, consumer: str) -> MessageCounts:
        """One statement. Raises what PostgreSQL says."""
        ...

    def close(self) -> None: ...


class Observer:
    def __init__(
        self, consumers: Sequence[tuple[Watched, RowsPort]], kafka: EndsPort, *, runtime: Runtime = THREADS
    ) -> None:
        self._consumers, self._kafka, self._runtime = consumers, kafka, runtime
        self._ends: dict[Partition, int] = {}
        self._earlier: dict[str, dict[Partition, Earlier]] = {}
        self._asked: set[Partition] = set()
        self._refused: dict[str, str] = {}
        self._ending = runtime.event()
        self._seen: Mapping[str, Sequence[ShownPartition]] = {}
        self._held: Mapping[str, MessageCounts] = {}
        self._answered_at: float | None = None
        self.is_waiting = False
        """For Kafka."""
        self._thread: Thread = runtime.thread(self._run, "outbox-observer")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait: whatever it does is bounded, and nothing depends on it."""
        self._ending.set()

    # ---- for whoever asks

    @property
    def seen(self) -> Mapping[str, Sequence[ShownPartition]]:
        """Of each consumer, the partitions that this process had last."""
        return self._seen

    @property
    def held(self) -> Mapping[str, MessageCounts]:
        """Of each consumer with partitions in this process, as PostgreSQL has answered last."""
        return self._held

    @property
    def age_s(self) -> float | None:
        """How long ago Kafka has answered. None: it has not yet."""
        return None if self._answered_at is None else self._runtime.monotonic() - self._answered_at

    # ---- its thread

    def _run(self) -> None:
        while not self._ending.wait(self._pause_s()):
            self.observe()
        for _, rows in self._consumers:
            rows.close()

    def _pause_s(self) -> float:
        """Processes that start together do not stay so. Without a partition there is nobody to be asked."""
        return EVERY_S * (0.8 + 0.4 * self._runtime.random()) if self._asked else FIRST_S

    def observe(self) -> None:
        """Once."""
        self._ask({one.partition for consumer, _ in self._consumers for one in consumer.observed})
        self._seen = {consumer.name: self._shown(consumer.name, consumer.observed) for consumer, _ in self._consumers}
        unavailable: list[RowsPort] = []
        held: dict[str, MessageCounts] = {}
        for consumer, rows in self._consumers:
            if rows not in unavailable and not self._write(consumer.name, rows, held):
                unavailable.append(rows)  # else each consumer would wait for the same server
        self._held = held

    def _ask(self, held: set[Partition]) -> None:
        # During an outage the group takes everything back: the outage has ended when the same question is answered.
        asked = held or (self._asked if self.is_waiting else set())
        try:
            found = self._kafka.ends(sorted(asked))
        except NotAvailable:
            found, self.is_waiting = {}, True
        else:
            self.is_waiting, self._answered_at = False, self._runtime.monotonic()
        self._asked = asked
        self._ends = {partition: end for partition, end in (self._ends | found).items() if partition in held}

    def _shown(self, name: str, observed: Sequence[Observed]) -> list[ShownPartition]:
        at, wall_s = self._runtime.monotonic(), self._runtime.time_ns() / 1e9
        before = self._earlier.get(name, {})
        self._earlier[name] = {one.partition: Earlier(one.handled, at) for one in observed}
        return [
            shown(one, self._ends.get(one.partition), wall_s=wall_s, at=at, earlier=before.get(one.partition))
            for one in observed
        ]

    def _write(self, name: str, rows: RowsPort, held: dict[str, MessageCounts]) -> bool:
        """False: PostgreSQL is unavailable. The workers log that."""
        try:
            rows.write(name, self._seen[name])
            if self._seen[name]:
                held[name] = rows.counts(name)
        except (psycopg.OperationalError, psycopg.InterfaceError):
            return False
        except Exception as error:
            reason = " ".join(str(error).split())
            if self._refused.get(name) != reason:
                self._refused[name] = reason
                logger.warning("partitions_not_shown consumer=%s error=%r", name, reason)
        else:
            self._refused.pop(name, None)
        return True
