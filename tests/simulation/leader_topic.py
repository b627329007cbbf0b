"""The simulated group and leader topic as the election's clients of one process reach them: an `ElectionClients`.

The coordinator is `world.group`. Errors, partitions and messages are those of confluent-kafka.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition

from tests.simulation.group import SESSION_TIMEOUT_S

_BEAT_S = 0.5
_RETRY_S = 0.1


class Topic:
    """The leader topic: of each partition its records, with the moment from which they can be read."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._logs: dict[int, list[tuple[float, Any, Any]]] = {}

    def append(self, partition: int, value: Any, headers: Any = None) -> int:
        log = self._logs.setdefault(partition, [])
        log.append((self._world.now + self._world.latency(), value, headers))
        return len(log) - 1

    def end(self, partition: int) -> int:
        return len(self._logs.get(partition, ()))

    def read(self, partition: int, offset: int) -> list[Any]:
        found: list[Any] = []
        for number, (seen_at, value, headers) in enumerate(self._logs.get(partition, ())[offset:], offset):
            if seen_at > self._world.now:
                break
            found.append(Message(partition, number, value, headers))
        return found


class Message:
    def __init__(self, partition: int, offset: int, value: Any, headers: Any) -> None:
        self._at, self._value, self._headers = (partition, offset), value, headers

    def error(self) -> None:
        return None

    def partition(self) -> int:
        return self._at[0]

    def offset(self) -> int:
        return self._at[1]

    def value(self) -> Any:
        return self._value

    def headers(self) -> Any:
        return self._headers


class _Client:
    def __init__(self, process: Any) -> None:
        self._process, self._world, self._runtime = process, process.world, process.runtime
        self._is_closed = False

    def _later(self, action: Callable[[], None], delay_s: float | None = None) -> None:
        """Something that a thread of the client does: not while the process is paused, and never when it is dead."""
        delay = self._world.latency() if delay_s is None else delay_s
        self._world.after(delay, partial(self._runtime.when_running, action))

    def list_topics(self, topic: str | None = None, *, timeout: float) -> Any:
        """The answer is not waited for."""
        name = KafkaError._TIMED_OUT if self._process.kafka_ok else KafkaError._TRANSPORT
        raise KafkaException(KafkaError(name, "simulated"))

    def assignment(self) -> Any:
        return []

    def committed(self, partitions: list[Any], timeout: float) -> Any:
        if not self._process.kafka_ok:
            self._runtime.sleep(timeout)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "simulated"))
        self._runtime.sleep(self._world.latency())
        return partitions


class GroupConsumer(_Client):
    """A member of the group. Its own thread, which heartbeats, runs also while callbacks do."""

    def __init__(self, process: Any, on_commit: Callable[[Any, list[Any]], None]) -> None:
        super().__init__(process)
        self.name, self._on_commit, self._group = process.name, on_commit, self._world.group
        self._callbacks: dict[str, Any] = {}
        self._topic = ""
        self._told: deque[tuple[str, Any]] = deque()
        self._assigned: dict[int, None] = {}
        self._is_member = False
        self._contact = self._world.now

    # ---- what the product calls

    def subscribe(self, topics: list[str], *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        (self._topic,) = topics
        self._callbacks = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        self._later(self._beat)

    def poll(self, timeout: float) -> None:
        if timeout:
            self._runtime.sleep(timeout)
        while self._told:
            what, found = self._told.popleft()
            if what == "commit":
                self._on_commit(*found)
                continue
            partitions = [found] if what != "lost" else list(self._assigned)
            while what != "lost" and self._told and self._told[0][0] == what:
                partitions.append(self._told.popleft()[1])
            self._call(what, partitions)

    def assign(self, partitions: list[Any]) -> None:
        self._assigned = dict.fromkeys(p.partition for p in partitions)

    def incremental_assign(self, partitions: list[Any]) -> None:
        self._assigned.update(dict.fromkeys(p.partition for p in partitions))

    def pause(self, partitions: list[Any]) -> None:
        assert all(p.partition in self._assigned for p in partitions)

    def assignment(self) -> Any:
        return [TopicPartition(self._topic, partition) for partition in self._assigned]

    def commit(self, *, offsets: list[Any], asynchronous: bool) -> None:
        """It is the group that answers: whether this is a member, and the owner."""
        assert asynchronous

        def arrive() -> None:
            if not self._process.kafka_ok or self._world.now < self._process.ignorant_until:
                return
            if is_member := self._group.members.get(self.name) is self:
                self._group.seen[self.name] = self._contact = self._world.now  # as a heartbeat does
            is_owner = is_member and all(self._group.is_owner(self.name, offset.partition) for offset in offsets)
            refusal = KafkaError.ILLEGAL_GENERATION if is_member else KafkaError.UNKNOWN_MEMBER_ID
            error = None if is_owner else KafkaError(refusal, "simulated")
            self._later(lambda: self._told.append(("commit", (error, offsets))))

        self._later(arrive)

    def close(self) -> None:
        self.poll(0)
        if self._assigned:
            self._call("revoke", list(self._assigned))
        self._is_closed = True
        if self._process.kafka_ok and self._group.members.get(self.name) is self:
            self._group.leave(self.name)

    # ---- what the group says

    def post(self, what: str, partition: int) -> None:
        if what == "assign" or self._world.now >= self._process.ignorant_until:
            self._told.append((what, partition))

    def _call(self, what: str, partitions: list[int]) -> None:
        ours = [TopicPartition(self._topic, partition) for partition in partitions]
        if what == "assign" and not self._is_member:
            return  # it has been thrown out since
        if what != "assign":
            ours = [partition for partition in ours if partition.partition in self._assigned]
        if ours or what == "assign":
            self._callbacks[what](self, ours)
        if what != "assign":
            for partition in partitions:
                self._assigned.pop(partition, None)
        if what == "revoke":
            for partition in partitions:
                self._group.released(self.name, partition)

    # ---- the client's own thread

    def _beat(self) -> None:
        """Heartbeats to the coordinator, and its own check of the session."""
        if self._is_closed:
            return
        now, group = self._world.now, self._group
        is_told = self._process.kafka_ok and now >= self._process.ignorant_until
        if not self._is_member:
            if self._process.kafka_ok:
                self._is_member, self._contact, self._process.is_evicted = True, now, False
                self._process.ignorant_until = 0.0  # who has joined again is told like all others
                group.join(self)
        elif is_told and group.members.get(self.name) is self:
            group.seen[self.name] = self._contact = now
        elif is_told or (now - self._contact > SESSION_TIMEOUT_S and now >= self._process.ignorant_until):
            self._is_member = False
            self._told.append(("lost", None))
        self._later(self._beat, _BEAT_S)


class HeartbeatReader(_Client):
    def __init__(self, process: Any) -> None:
        super().__init__(process)
        self._positions: dict[int, int | None] = {}

    def assign(self, partitions: list[Any]) -> None:
        assert all(partition.offset == OFFSET_END for partition in partitions)
        self._positions = dict.fromkeys(partition.partition for partition in partitions)

    def assignment(self) -> Any:
        return list(self._positions)

    def consume(self, num_messages: int, timeout: float) -> list[Any]:
        if timeout:
            self._runtime.sleep(timeout)
        found: list[Any] = []
        if not self._process.kafka_ok:
            return found
        topic = self._world.leader_topic
        for partition, position in self._positions.items():
            if position is None:
                self._positions[partition] = topic.end(partition)
            else:
                new = topic.read(partition, position)[: num_messages - len(found)]
                self._positions[partition] = position + len(new)
                found += new
        return found

    def close(self) -> None:
        self._positions = {}


class HeartbeatProducer(_Client):
    def __init__(self, process: Any) -> None:
        super().__init__(process)
        self._reports: list[Callable[[], None]] = []

    def produce(self, topic: str, value: bytes, *, partition: int, headers: Any, on_delivery: Any) -> None:
        give_up_at = self._world.now + self._process.conf.election.heartbeat_timeout_s

        def arrive() -> None:
            if self._process.kafka_ok:
                self._world.leader_topic.append(partition, value, headers)
                self._process.beat_at[partition] = self._world.now
                self._reports.append(lambda: on_delivery(None, None))
            elif self._world.now < give_up_at:
                self._later(arrive, _RETRY_S)
            else:
                error = KafkaError(KafkaError._MSG_TIMED_OUT, "simulated")
                self._reports.append(lambda: on_delivery(error, None))

        self._later(arrive)

    def poll(self, timeout: float) -> int:
        if timeout:
            self._runtime.sleep(timeout)
        reports, self._reports = self._reports, []
        for report in reports:
            report()
        return len(reports)


class Clients:
    """Of one process."""

    def __init__(self, process: Any) -> None:
        self._process = process

    def member(self, on_error: Any, on_commit: Any) -> GroupConsumer:
        return GroupConsumer(self._process, on_commit)

    def reader(self, on_error: Any) -> HeartbeatReader:
        return HeartbeatReader(self._process)

    def producer(self, on_error: Any) -> HeartbeatProducer:
        return HeartbeatProducer(self._process)
