"""What a consumer asks of Kafka, asked of the simulated topic and group and of real ones: cases, and both sides."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from outbox.core.consumers.values import ClientError, Fetched, Partition, Position
from outbox.edges.kafka.consumers.group import Group, properties_of
from outbox.edges.kafka.consumers.topics import Topics
from outbox.runtime.threads import THREADS
from tests.simulation.conformance.frame import Asking, RealServers, SimulatedServers, play, play_simulated
from tests.simulation.consumers import topic as simulated_topic
from tests.simulation.consumers.checkers import Written
from tests.simulation.consumers.scenario import World
from tests.simulation.consumers.topic import TOPIC
from tests.simulation.runtime import Simulated
from tests.support.topics import create_topic

SEED = 5  # two partitions, and rebalances that leave to each member what it keeps
ENOUGH_S = 30.0
MISSING = "no-such-topic"
FAR_MS = 4_000_000_000_000


class SimulatedKafka(SimulatedServers):
    topic = TOPIC

    def __init__(self) -> None:
        self.world = World(SEED)
        self.runtime = Simulated(self.world, origin=50.0)
        self.world.primary.rows = {partition: Position(0) for partition in self.world.topic.logs}
        self.topics = simulated_topic.Topics(self._process("admin"))
        self.epoch_before = self._log(0).epoch - 1

    def _process(self, name: str) -> Any:
        return SimpleNamespace(name=name, world=self.world, runtime=self.runtime, is_closed=False)

    def _log(self, number: int) -> Any:
        return self.world.topic.logs[Partition(TOPIC, number)]

    def member(self, name: str) -> Any:
        return simulated_topic.Client(self._process(name))

    def produce(self, number: int, uids: Sequence[int]) -> None:
        for uid in uids:
            self._log(number).append(Written(uid, f"k{uid}", uid), marks=0)

    def expire(self, number: int, count: int) -> None:
        self._log(number).expire(count)


class RealKafka(RealServers):
    runtime = THREADS
    epoch_before = 7
    """Another than that of the messages."""

    def __init__(self, servers: str) -> None:
        self._given = {"bootstrap.servers": servers}
        self._group = f"g-{uuid.uuid4().hex[:8]}"
        self.topic = create_topic(servers, 2)
        self.topics, self._admin = Topics(self._given, self._group), AdminClient(self._given)

    def member(self, name: str) -> Any:
        return Group(properties_of(self._given, self._group, session_timeout_s=6), [self.topic])

    def produce(self, number: int, uids: Sequence[int]) -> None:
        producer = Producer(self._given)
        for uid in uids:
            producer.produce(self.topic, b"%d" % uid, f"k{uid}", number)
        assert producer.flush(20) == 0

    def expire(self, number: int, count: int) -> None:
        until = TopicPartition(self.topic, number, count)
        self._admin.delete_records([until])[until].result(20)


class Member:
    """Its client, and what the group gives to it."""

    def __init__(self, script: Script, name: str) -> None:
        self._script, self._client = script, script.side.member(name)
        self.held: set[Partition] = set()
        self.is_closed = False
        self("join", self)

    def __call__(self, name: str, *given: Any) -> Any:
        return self._script.call("GroupPort", name, self._client, *given)

    def assigned(self, partitions: Sequence[Partition]) -> None:
        self.held.update(partitions)

    def revoked(self, partitions: Sequence[Partition]) -> None:
        self.held.difference_update(partitions)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self("close")


class Script(Asking):
    def __init__(self, side: Any) -> None:
        super().__init__(side)
        self._members: list[Member] = []
        self.one, self.two = Partition(side.topic, 0), Partition(side.topic, 1)

    def member(self, name: str) -> Member:
        member = Member(self, name)
        self._members.append(member)
        return member

    def close(self) -> None:
        for member in self._members:
            member.close()

    def call(self, port: str, name: str, found: Any, *given: Any) -> Any:
        self.called.add((port, name))
        return getattr(found, name)(*given)

    def ask(self, name: str, *given: Any) -> Any:
        answer = self.call("TopicsPort", name, self.side.topics, *given)
        told = answer
        if name == "names":
            told = self.side.topic in answer
        elif name == "ids":
            told = [self._plain(topic) for topic in answer]
        elif isinstance(answer, Mapping):
            told = sorted((self._plain(partition), found) for partition, found in answer.items())
        self.lines.append((name, told))
        return answer

    def wait(self, until: Callable[[], bool], *members: Member) -> None:
        give_up_at = self.runtime.monotonic() + ENOUGH_S
        while not until():
            assert self.runtime.monotonic() < give_up_at
            for member in members:
                found = member("poll", 0.05, 100)
                assert not found.messages
        self.lines.append([sorted(partition.number for partition in member.held) for member in members])

    def read(self, member: Member, *, until: int | None = None, within_s: float = ENOUGH_S) -> list[int]:
        """Messages up to so many, or to an end or an error; the offsets."""
        messages: list[Fetched] = []
        errors: list[ClientError] = []
        ends: dict[Partition, int] = {}
        give_up_at = self.runtime.monotonic() + within_s
        while len(messages) < until if until is not None else not (ends or errors):
            if self.runtime.monotonic() > give_up_at:
                break
            found = member("poll", 0.05, 100)
            messages += found.messages
            errors += found.errors
            ends |= found.ends
        told = [(m.partition, m.offset, m.key, m.value, m.headers) for m in messages]
        ended = sorted((self._plain(partition), end) for partition, end in ends.items()) if until is None else None
        self.lines.append((told, [(self._plain(one.partition), one.name) for one in errors], ended))
        return [message.offset for message in messages]

    def silent(self, member: Member) -> None:
        assert self.read(member, within_s=0.25) == []

    def _plain(self, value: Any) -> Any:
        if isinstance(value, Partition):
            return self._plain(value.topic), value.number
        return TOPIC if value == self.side.topic else value


def _begun(s: Script) -> Member:
    member = s.member("first")
    s.wait(lambda: member.held == {s.one, s.two}, member)
    return member


def a_partition_is_read_from_where_it_is_started(s: Script) -> None:
    s.side.produce(0, range(10))
    s.side.produce(1, range(20, 22))
    member = _begun(s)
    s.silent(member)
    member("start", {s.one: Position(6)})
    assert s.read(member) == [6, 7, 8, 9]
    member("start", {s.two: Position(0)})
    assert s.read(member) == [0, 1]
    s.side.produce(0, [10])
    assert s.read(member) == [10]
    member("stop", [s.one])
    s.side.produce(0, [11])
    s.silent(member)
    member("subscribe", [s.side.topic])
    member("start", {s.one: Position(9)})
    assert s.read(member) == [9, 10, 11]
    assert member.held == {s.one, s.two}


def a_pause_lasts_until_it_is_resumed(s: Script) -> None:
    s.side.produce(0, range(4))
    member = _begun(s)
    member("start", {s.one: Position(0)})
    assert s.read(member) == [0, 1, 2, 3]
    member("pause", [s.one])
    s.side.produce(0, [4, 5])
    s.silent(member)
    member("resume", [s.one, s.two])
    assert s.read(member, until=2) == [4, 5]
    member("pause", [s.one])
    member("stop", [s.one])
    member("start", {s.one: Position(3)})
    s.silent(member)
    member("resume", [s.one])
    assert s.read(member, until=3) == [3, 4, 5]


def a_position_that_cannot_be_read_is_reported(s: Script) -> None:
    s.side.produce(0, range(6))
    s.side.produce(1, range(3))
    s.side.expire(0, 4)
    member = _begun(s)
    for partition, position in ((s.one, Position(99)), (s.one, Position(3)), (s.two, Position(4))):
        member("start", {partition: position})
        assert s.read(member) == []
        s.silent(member)
        member("stop", [partition])
    topic_id = s.side.topics.ids([s.side.topic])[s.side.topic]
    member("start", {s.two: Position(2, topic_id, s.side.epoch_before)})
    assert s.read(member) == []
    s.silent(member)
    member("start", {s.one: Position(4, topic_id, s.side.epoch_before)})
    assert s.read(member) == [4, 5], "nobody can compare with a message that has expired"
    member("stop", [s.one])
    member("start", {s.one: Position(6)})
    assert s.read(member) == []


def what_kafka_knows_is_asked_for(s: Script) -> None:
    s.side.produce(0, range(4))
    s.side.expire(0, 1)
    s.ask("names")
    assert list(s.ask("ids", [s.side.topic, MISSING])) == [s.side.topic]
    assert s.ask("ids", [MISSING]) == s.ask("ids", []) == {}
    assert (s.ask("partitions", s.side.topic), s.ask("partitions", MISSING)) == (2, 0)
    assert (s.ask("bounds", s.one), s.ask("bounds", s.two)) == ((1, 4), (0, 0))
    assert (s.ask("offset_at", s.one, FAR_MS), s.ask("offset_at", s.two, FAR_MS)) == (4, 0)
    member = _begun(s)  # a broker that has just started knows of no group before
    assert s.ask("copies", [s.one, s.two]) == {}
    member("commit_copy", {})
    member("commit_copy", {s.one: 3})
    give_up_at = s.runtime.monotonic() + ENOUGH_S
    while not s.side.topics.copies([s.one]):
        assert s.runtime.monotonic() < give_up_at
        member("poll", 0.05, 100)
    assert s.ask("copies", [s.one, s.two]) == {s.one: 3}
    assert s.ask("copies", []) == {}


def partitions_move_to_another_member_and_back(s: Script) -> None:
    first = _begun(s)
    second = s.member("second")
    give_up_at = s.runtime.monotonic() + ENOUGH_S
    while not len(first.held) == len(second.held) == 1:
        assert s.runtime.monotonic() < give_up_at
        for member in (first, second):
            member("poll", 0.05, 100)
    (number,) = (partition.number for partition in second.held)
    s.side.produce(number, [1])
    s.side.produce(1 - number, [1])
    second("start", {partition: Position(0) for partition in second.held})
    assert s.read(second, until=1) == [0]
    s.lines.pop()  # which of them moves is left to the group
    first.close()
    assert first.held == set(), "it is informed of that too"
    s.wait(lambda: len(second.held) == 2, second)


CASES: tuple[Callable[[Script], None], ...] = (
    a_partition_is_read_from_where_it_is_started,
    a_pause_lasts_until_it_is_resumed,
    a_position_that_cannot_be_read_is_reported,
    what_kafka_knows_is_asked_for,
    partitions_move_to_another_member_and_back,
)


def simulated(case: Callable[[Script], None]) -> Script:
    return play_simulated(case, lambda: Script(SimulatedKafka()))


def real(case: Callable[[Script], None], servers: str) -> Script:
    return play(case, Script(RealKafka(servers)))
