"""The simulated topic, and the client that reads it as a member of the group.

The client compares leader epochs with the log when it begins to read, and when a leader has changed. It does not notice
that a topic was created again: it reads on at the same offset. It keeps a pause when a partition is stopped or revoked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outbox.core.consumers.values import ClientError, Fetched, Partition, Polled, Position
from outbox.exceptions import NotAvailable
from tests.simulation.checkers import Violation
from tests.simulation.consumers.checkers import Written
from tests.simulation.runtime import Waiters

TOPIC = "orders"
HEARTBEAT_S = 0.5


class Log:
    """One partition."""

    def __init__(self, epoch: int) -> None:
        self.entries: list[tuple[int, int, Written]] = []
        """Offset, leader epoch, message."""
        self.first = self.end = 0
        self.epoch = epoch

    def append(self, message: Written, marks: int) -> None:
        """`marks` of transactions follow."""
        self.entries.append((self.end, self.epoch, message))
        self.end += 1 + marks

    def truncate(self, keep: int) -> None:
        """An unclean election: another leader has only so many messages."""
        self.entries = self.entries[:keep]
        self.end = self.entries[-1][0] + 1 if self.entries else self.first
        self.epoch += 1

    def expire(self, count: int) -> None:
        self.entries = self.entries[count:]
        self.first = self.entries[0][0] if self.entries else self.end

    def end_of(self, epoch: int) -> int:
        """Of the part that leaders up to this epoch have written."""
        return next((offset for offset, found, _ in self.entries if found > epoch), self.end)

    def read(self, offset: int, count: int) -> list[tuple[int, int, Written]]:
        return [entry for entry in self.entries if entry[0] >= offset][:count]


class Topic:
    def __init__(self, world: Any, partitions: int) -> None:
        self.world, self.id = world, "1"
        self.logs = {Partition(TOPIC, number): Log(epoch=3) for number in range(partitions)}
        self.copies: dict[Partition, int] = {}
        self.changed: set[Partition] = set()
        """Whose log was changed by more than new messages."""

    def create_again(self) -> None:
        self.id = str(int(self.id) + 1)
        self.logs = {partition: Log(epoch=0) for partition in self.logs}
        self.changed.update(self.logs)

    @property
    def messages(self) -> list[Written]:
        return [message for log in self.logs.values() for _, _, message in log.entries]


class Reading:
    """Of one partition, from where it was begun."""

    def __init__(self, log: Log, position: Position) -> None:
        self.log, self.next, self.epoch = log, position.next, position.leader_epoch
        self.is_checked = self.is_over = False
        self.told_end = -1


class Client:
    """A `GroupPort`. As a member of the simulated group it has a name and gets its news by `post`."""

    def __init__(self, process: Any) -> None:
        self.process, self.world, self.name = process, process.world, process.name
        self.owned: set[Partition] = set()
        self.subscribed: list[Sequence[str]] = []
        self.errors: list[ClientError] = []
        """What it reports next."""
        self._readings: dict[Partition, Reading] = {}
        self._paused: set[Partition] = set()
        self._news: list[tuple[str, int]] = []
        self._listener: Any = None
        self._is_member = False
        self._waiters = Waiters()

    # ---- the group

    def join(self, listener: Any) -> None:
        self._listener = listener
        self._join()
        self._beat()

    def _join(self) -> None:
        self._is_member, self._news = True, []
        self.world.group.join(self)

    def _beat(self) -> None:
        def beat() -> None:
            if self.process.is_closed:
                return
            if self.name in self.world.group.members:
                self.world.group.seen[self.name] = self.world.now
            else:
                self._is_member = False
            self._beat()

        self.world.after(HEARTBEAT_S, lambda: self.process.runtime.when_running(beat))

    def post(self, kind: str, partition: int) -> None:
        self._news.append((kind, partition))

    def _rebalance(self) -> None:
        if not self._is_member:
            lost = sorted(self.owned)
            self._revoke(lost)
            self._join()
        news, self._news = self._news, []
        for kind, number in news:
            partition = Partition(TOPIC, number)
            if kind == "assign":
                self.owned.add(partition)
                self._listener.assigned([partition])
            else:
                self._revoke([partition])
                self.world.group.released(self.name, number)

    def _revoke(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            self._readings.pop(partition, None)
        if partitions:
            self._listener.revoked(partitions)
            self.owned.difference_update(partitions)

    # ---- reading

    def poll(self, timeout_s: float, count: int) -> Polled:
        give_up_at = self.world.now + timeout_s
        while True:
            self._rebalance()
            polled = self._read(min(count, self.world.random.choice((1, 3, 10, 50))))
            left_s = give_up_at - self.world.now
            if polled.messages or polled.errors or polled.ends or left_s <= 0:
                self.process.runtime.sleep(0.001)
                return polled
            self.process.runtime.wait(min(left_s, 0.05), self._waiters)

    def _read(self, count: int) -> Polled:
        messages: list[Fetched] = []
        ends = {}
        errors, self.errors = self.errors, []
        for partition, reading in self._readings.items():
            log = self.world.topic.logs[partition]
            if reading.is_over or partition in self._paused or self.world.now < self.world.no_fetch_until:
                continue
            if error := self._error(partition, reading, log):
                reading.is_over = True
                errors.append(error)
                continue
            for offset, epoch, message in log.read(reading.next, count - len(messages)):
                key, value = message.key.encode(), b"%d" % message.uid
                messages.append(Fetched(TOPIC, partition.number, offset, epoch, key, value, (), 0))
                reading.next, reading.epoch = offset + 1, epoch
            if not log.read(reading.next, 1) and reading.told_end != log.end:
                ends[partition] = reading.told_end = log.end
                reading.next = log.end
        return Polled(messages, errors, ends)

    def _error(self, partition: Partition, reading: Reading, log: Log) -> ClientError | None:
        same_topic = reading.log is log
        if same_topic and reading.epoch >= 0 and log.end_of(reading.epoch) < reading.next:
            return ClientError(partition, "_LOG_TRUNCATION", f"the log ends at {log.end}")
        lags = self.world.now < self.world.watermark_lags_until and reading.next == log.end
        if lags or not log.first <= reading.next <= log.end:
            return ClientError(partition, "_AUTO_OFFSET_RESET", "Broker: Offset out of range")
        return None

    def start(self, positions: Mapping[Partition, Position]) -> None:
        for partition, position in positions.items():
            if partition not in self.world.primary.rows:
                raise Violation(f"{self.name} reads {partition} before its position is committed")
            assert partition in self.owned
            reading = self._readings[partition] = Reading(self.world.topic.logs[partition], position)
            if position.topic_id != self.world.topic.id:
                reading.epoch = -1

    def subscribe(self, topics: Sequence[str]) -> None:
        self.subscribed.append(topics)

    def stop(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            self._readings.pop(partition, None)

    def pause(self, partitions: Sequence[Partition]) -> None:
        self._paused.update(partitions)

    def resume(self, partitions: Sequence[Partition]) -> None:
        self._paused.difference_update(partitions)

    def commit_copy(self, positions: Mapping[Partition, int]) -> None:
        if self._is_member:
            self.world.topic.copies.update(positions)

    def close(self) -> None:
        self._revoke(sorted(self.owned))
        self.process.is_closed = True
        self.world.group.leave(self.name)


class Topics:
    """A `TopicsPort`."""

    def __init__(self, process: Any) -> None:
        self._process, self._world = process, process.world

    def _ask(self) -> Topic:
        self._process.runtime.sleep(self._world.latency())
        if self._world.chance(self._world.faults.no_metadata):
            raise NotAvailable("no broker answers")
        return self._world.topic  # type: ignore[no-any-return]

    def names(self) -> set[str]:
        self._ask()
        return {TOPIC, *self._world.other_topics}

    def ids(self, topics: Sequence[str]) -> dict[str, str]:
        found = self._ask()
        return {TOPIC: found.id} if TOPIC in topics else {}

    def partitions(self, topic: str) -> int:
        found = self._ask()
        return len(found.logs) if topic == TOPIC else 0

    def copies(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        found = self._ask().copies
        return {partition: found[partition] for partition in partitions if partition in found}

    def bounds(self, partition: Partition) -> tuple[int, int]:
        log = self._ask().logs[partition]
        if partition in self._world.leaderless:
            raise NotAvailable(f"{partition} has no leader")
        lags = self._world.now < self._world.watermark_lags_until
        return log.first, log.end - 1 if lags else log.end

    def offset_at(self, partition: Partition, timestamp_ms: int) -> int:
        return self._ask().logs[partition].end
