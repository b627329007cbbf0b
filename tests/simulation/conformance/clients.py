"""The simulated clients of Kafka against confluent-kafka's: those of the election, and the idempotent producer."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition

from outbox.conf import parse
from outbox.edges.kafka.common.clients import idempotent_producer
from outbox.election.clients import Clients
from outbox.election.topic import LeaderTopic
from outbox.runtime.threads import THREADS
from tests.simulation import leader_topic
from tests.simulation.at_least_once import kafka
from tests.simulation.at_least_once.scenario import PLAIN, World
from tests.simulation.conformance.frame import Asking, RealServers, SimulatedServers, play, play_simulated
from tests.simulation.conformance.marks import Unchecked
from tests.simulation.runtime import Simulated
from tests.support.settings import changed
from tests.support.topics import create_topic, read_topic

PARTITIONS = 3
_ENOUGH_S = 40.0


class SimulatedKafka(SimulatedServers):
    topic, data_topic = "leaders", "orders"

    def __init__(self) -> None:
        self.checkers = Unchecked(window=9)
        self.world = World(1, self.checkers, PLAIN)
        assert len(self.world.group.partitions) == PARTITIONS
        self.world.group.cooperative = True
        self.runtime: Any = Simulated(self.world, origin=50.0)
        self._named = 0

    def _process(self) -> Any:
        self._named += 1
        return SimpleNamespace(
            name=f"p{self._named}", world=self.world, runtime=self.runtime, conf=self.world.conf, kafka_ok=True,
            ignorant_until=0.0, is_evicted=False, beat_at={}, clients={}, handed=lambda lane, message: None,
        )  # fmt: skip

    def clients(self) -> Any:
        return leader_topic.Clients(self._process())

    def producer(self) -> Any:
        return kafka.Client(self._process(), 0, {})

    def records(self, *keys: str) -> list[tuple[bytes, str | None]]:
        rows = [self.world.table.draw(key, keys[:number].count(key)) for number, key in enumerate(keys)]
        self.world.table.insert(rows)
        return [(b"%d" % row.id, row.key or None) for row in rows]

    def delivered(self) -> list[bytes]:
        return [b"%d" % id_ for id_ in self.checkers.appended]

    def be_eager(self) -> None:
        self.world.group.cooperative = False

    def refuse_keyless(self) -> None:
        self.world.faults.refuse_keys = {"": None}


class RealKafka(RealServers):
    def __init__(self, bootstrap_servers: str) -> None:
        self.runtime, self._servers = THREADS, bootstrap_servers
        name = f"conformance-{uuid.uuid4().hex[:8]}"
        self.conf = parse({"BOOTSTRAP_SERVERS": bootstrap_servers, "NAME": name, "LANES": PARTITIONS})
        self.topic, self.data_topic = self.conf.election.leader_topic, f"{name}-orders"
        self._config: dict[str, str] = {}
        with closing(LeaderTopic(self.clients(), self.conf, threading.Event())) as topic:
            assert topic.prepare() == PARTITIONS

    def clients(self) -> Any:
        return Clients(self.conf)

    def producer(self) -> Any:
        create_topic(self._servers, 1, self.data_topic, **self._config)
        return idempotent_producer({"bootstrap.servers": self._servers})

    def records(self, *keys: str) -> list[tuple[bytes, str | None]]:
        return [(b"%d" % number, key or None) for number, key in enumerate(keys, 1)]

    def delivered(self) -> list[bytes]:
        return [record.value or b"" for record in read_topic(self._servers, self.data_topic)]

    def be_eager(self) -> None:
        self.conf = changed(self.conf, ASSIGNOR="range")

    def refuse_keyless(self) -> None:
        self._config = {"cleanup.policy": "compact"}


class Script(Asking):
    def note(self, *what: Any) -> None:
        self.lines.append(what)

    def until(self, condition: Callable[[], Any]) -> None:
        give_up_at = self.runtime.monotonic() + _ENOUGH_S
        while not condition():
            assert self.runtime.monotonic() < give_up_at, "the awaited condition did not come true"
            self.runtime.sleep(0.02)

    def client(self, port: str, made: Any) -> Any:
        return Called(self, port, made)

    def member(self, *, is_eager: bool = False) -> Member:
        return Member(self, is_eager=is_eager)


class Called:
    def __init__(self, script: Script, port: str, found: Any) -> None:
        self._script, self._port, self._found = script, port, found

    def __getattr__(self, name: str) -> Any:
        self._script.called.add((self._port, name))
        return getattr(self._found, name)

    def __len__(self) -> int:
        self._script.called.add((self._port, "__len__"))
        return len(self._found)


class Member:
    """A consumer of the group that does with its partitions as the product does."""

    def __init__(self, script: Script, *, is_eager: bool) -> None:
        self._script, self.told, self._is_eager = script, list[Any](), is_eager
        self.owned: set[int] = set()
        clients = script.client("ElectionClients", script.side.clients())
        self.consumer = script.client("GroupConsumer", clients.member(print, self._answered))
        callbacks = {"on_assign": self._assigned, "on_revoke": self._revoked, "on_lost": self._revoked}
        self.consumer.subscribe([script.side.topic], **callbacks)

    def _answered(self, error: Any, partitions: list[Any]) -> None:
        found = error or partitions[0].error
        self.told.append((None if found is None else found.name(), partitions[0].partition, partitions[0].offset))

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        ours = [TopicPartition(self._script.side.topic, p.partition, OFFSET_END) for p in partitions]
        (self.consumer.assign if self._is_eager else self.consumer.incremental_assign)(ours)
        if ours:
            self.consumer.pause(ours)
        self.owned |= {p.partition for p in partitions}

    def _revoked(self, consumer: Any, partitions: list[Any]) -> None:
        self.owned -= {p.partition for p in partitions}

    def poll(self) -> None:
        assert self.consumer.poll(0) is None


# ---- cases


def members_share_the_partitions_and_give_them_back(s: Script) -> None:
    first = s.member()
    s.until(lambda: first.poll() or len(first.owned) == PARTITIONS)
    s.note(sorted(p.partition for p in first.consumer.assignment()))
    second = s.member()
    s.until(lambda: first.poll() or second.poll() or (second.owned and len(first.owned | second.owned) == PARTITIONS))
    s.note(sorted(map(len, (first.owned, second.owned))), first.owned & second.owned)
    first.consumer.close()
    s.note(first.owned)
    s.until(lambda: second.poll() or len(second.owned) == PARTITIONS)
    second.consumer.close()
    s.note(second.owned)


def a_question_is_answered_in_the_generation_of_the_member(s: Script) -> None:
    member = s.member()
    s.until(lambda: member.poll() or member.owned)
    for ticket in (1, 2):
        member.consumer.commit(offsets=[TopicPartition(s.side.topic, 1, ticket)], asynchronous=True)
        s.until(lambda ticket=ticket: member.poll() or len(member.told) == ticket)  # type: ignore[misc]
    s.note(member.told)
    member.consumer.committed([TopicPartition(s.side.topic, 0)], timeout=10.0)
    _ask(s, lambda: member.consumer.list_topics(timeout=0))
    member.consumer.close()


def an_eager_group_moves_all_partitions(s: Script) -> None:
    s.side.be_eager()
    first = s.member(is_eager=True)
    s.until(lambda: first.poll() or len(first.owned) == PARTITIONS)
    second = s.member(is_eager=True)
    s.until(lambda: first.poll() or second.poll() or (second.owned and len(first.owned | second.owned) == PARTITIONS))
    s.note(sorted(map(len, (first.owned, second.owned))), len(first.consumer.assignment()) == len(first.owned))
    for member in (first, second):
        member.consumer.close()


def heartbeats_are_read_from_the_end_on(s: Script) -> None:
    clients = s.client("ElectionClients", s.side.clients())
    producer = s.client("HeartbeatProducer", clients.producer(print))
    reader = s.client("HeartbeatReader", clients.reader(print))
    reports: list[Any] = []

    def say(partition: int, text: bytes) -> None:
        reports.clear()
        producer.produce(
            s.side.topic, text, partition=partition, headers=[("of", b"x")], on_delivery=lambda e, m: reports.append(e)
        )
        s.until(lambda: producer.poll(0) is None or reports)
        s.note(reports[0])

    _ask(s, lambda: producer.list_topics(s.side.topic, timeout=0))
    _ask(s, lambda: reader.list_topics(s.side.topic, timeout=0))
    say(0, b"before")
    reader.assign([TopicPartition(s.side.topic, partition, OFFSET_END) for partition in range(PARTITIONS)])
    s.note(len(reader.assignment()))
    found: list[Any] = list(reader.consume(10, timeout=0.5))
    for _ in range(40):
        found += reader.consume(10, timeout=0)
        s.runtime.sleep(0.1)
    for number, text in enumerate((b"a", b"b", b"c")):
        say(number % 2, text)
    s.until(lambda: found.extend(reader.consume(2, timeout=0)) or len(found) == 3)
    s.note(sorted((m.partition(), m.offset(), m.value(), m.headers()) for m in found), [m.error() for m in found])
    reader.committed([TopicPartition(s.side.topic, 0)], timeout=10.0)
    reader.close()


def records_are_reported_once_they_are_written(s: Script) -> None:
    producer, reports = s.client("Client", s.side.producer()), list[Any]()
    for value, key in s.side.records("a", "b", "c", ""):
        producer.produce(s.side.data_topic, value, key, headers=[], on_delivery=lambda e, m: reports.append(e))
    s.note(len(producer), reports)
    s.until(lambda: producer.poll(0.05) is None or len(reports) == 2 or producer.flush(1.0) == 0)
    s.note(producer.flush(10.0), len(producer), reports, sorted(s.side.delivered()))


def what_is_purged_is_never_written(s: Script) -> None:
    producer, reports = s.client("Client", s.side.producer()), list[Any]()
    for value, key in s.side.records("a", "b"):
        producer.produce(s.side.data_topic, value, key, headers=[], on_delivery=lambda e, m: reports.append(e.name()))
    producer.purge(blocking=False)
    s.until(lambda: producer.poll(0) is None or len(reports) == 2)
    s.runtime.sleep(1.0)
    s.note(len(producer), reports, s.side.delivered())


def a_refused_record_is_named(s: Script) -> None:
    s.side.refuse_keyless()
    producer, reports = s.client("Client", s.side.producer()), list[Any]()
    for value, key in s.side.records("", "a"):
        producer.produce(
            s.side.data_topic, value, key, headers=[],
            on_delivery=lambda e, m: reports.append(e and (e.name(), e.fatal(), e.retriable())),
        )  # fmt: skip
        s.note(producer.flush(10.0))
    s.note(reports, s.side.delivered())


def _ask(s: Script, list_topics: Callable[[], Any]) -> None:
    """The client does not wait for the answer: only a timeout shows that it has asked a broker."""

    def is_asked() -> bool:
        try:
            list_topics()
        except KafkaException as error:
            return bool(error.args[0].code() == KafkaError._TIMED_OUT)
        return True

    s.until(is_asked)


CASES = (
    members_share_the_partitions_and_give_them_back,
    a_question_is_answered_in_the_generation_of_the_member,
    an_eager_group_moves_all_partitions,
    heartbeats_are_read_from_the_end_on,
    records_are_reported_once_they_are_written,
    what_is_purged_is_never_written,
    a_refused_record_is_named,
)


def simulated(case: Callable[[Script], None]) -> Script:
    return play_simulated(case, lambda: Script(SimulatedKafka()))


def real(case: Callable[[Script], None], bootstrap_servers: str) -> Script:
    return play(case, Script(RealKafka(bootstrap_servers)))
