"""What the lanes of a graph ask of Kafka, asked of the simulated brokers and group and of real ones.

One processor with two inputs of two partitions. Names of topics differ from side to side, so the records have those of
the simulated one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaException, Producer

from outbox.core.consumers.values import Fetched, Partition
from outbox.core.graphs.declaration import GraphGiven, ProcessorGiven, graph_of
from outbox.core.graphs.outputs import Produced
from outbox.core.graphs.positions import InputState, LaneEntry
from outbox.core.graphs.values import ProcessorKind, owner_of
from outbox.edges.kafka.consumers.topics import CoordinatorLoading
from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer, initialised, kafka_error
from outbox.edges.kafka.graphs.group import LaneGroup, properties_of
from outbox.edges.kafka.graphs.topics import LaneTopics
from outbox.exceptions import OutboxError
from outbox.runtime.threads import THREADS
from tests.simulation.conformance.frame import (
    Asking,
    Order,
    RealServers,
    SimulatedServers,
    play,
    play_simulated,
    told_of,
)
from tests.simulation.graphs import kafka as simulated_kafka
from tests.simulation.graphs.scenario import World
from tests.simulation.runtime import Simulated
from tests.support.topics import create_topic, read_topic

SEED = 7  # two inputs, two partitions
X, Y, OUTPUT, ERRORS = "x", "y", "a", "errors"
TOPICS = X, Y, OUTPUT, ERRORS
ENOUGH_S = 30.0
TRANSACTION_TIMEOUT_S = 20.0
_ERRORS = (KafkaException, OutboxError, ValueError)


class SimulatedKafka(SimulatedServers):
    def __init__(self) -> None:
        self.world = World(SEED)
        assert (self.world.processor.topics, self.world.kafka.partitions) == ((X, Y), 2)
        self.runtime = Simulated(self.world, origin=50.0)
        self.process = self._process("asking")

    def _process(self, name: str) -> Any:
        return SimpleNamespace(
            name=name, world=self.world, runtime=self.runtime, is_closed=False, kafka_ok=True, placed={}, clients={},
            passed=lambda point: None,
        )  # fmt: skip

    def topic(self, name: str) -> str:
        return name

    def plain(self, text: str) -> str:
        return text

    def kafka(self) -> Any:
        return simulated_kafka.LaneKafka(self.process)

    def member(self, name: str) -> Any:
        return simulated_kafka.Member(self._process(name))

    def write(self, topic: str, number: int, uids: Sequence[int]) -> None:
        for uid in uids:
            self.world.kafka.sources[topic, number].append(b"k%d" % uid, uid, marks=0)

    def refused(self, value: bytes) -> Produced:
        self.world.refused.add(value)
        return Produced(OUTPUT, None, value, ())

    def unacknowledged(self, value: bytes) -> Produced:
        self.process.kafka_ok = False
        return Produced(OUTPUT, b"k", value, ())

    def delivered(self) -> list[str]:
        self.runtime.sleep(1.0)
        return [name for _, name in self.world.kafka.seen]


class RealKafka(RealServers):
    runtime = THREADS

    def __init__(self, servers: str) -> None:
        self._servers, self._given = servers, {"bootstrap.servers": servers}
        self._name = f"g-{uuid.uuid4().hex[:8]}"
        for name in TOPICS:
            create_topic(servers, 2, self.topic(name))
        given = ProcessorGiven(
            kind=ProcessorKind.ALTS,
            name="p",
            inputs=[self.topic(X), self.topic(Y)],
            to=self.topic(OUTPUT),
            function=lambda message: None,
            on_error=f"topic:{self.topic(ERRORS)}",
        )
        self._graph = graph_of(GraphGiven(name=self._name, processors=[given]))
        (self._processor,) = self._graph.processors
        self._inputs = Producer(self._given)

    def topic(self, name: str) -> str:
        return f"{self._name}-{name}"

    def plain(self, text: str) -> str:
        return text.replace(f"{self._name}-", "").replace(self._name, "graph")

    def kafka(self) -> Any:
        return LaneTopics(
            self._graph, self._processor, self._given, self._given, transaction_timeout_s=TRANSACTION_TIMEOUT_S
        )

    def member(self, name: str) -> Any:
        group = owner_of(self._graph.name, self._processor.name)
        return LaneGroup(properties_of(self._given, group, session_timeout_s=6), self._processor.topics)

    def write(self, topic: str, number: int, uids: Sequence[int]) -> None:
        for uid in uids:
            self._inputs.produce(self.topic(topic), b"%d" % uid, b"k%d" % uid, number)
        assert self._inputs.flush(20) == 0

    def refused(self, value: bytes) -> Produced:
        """A topic that is compacted takes no record without a key."""
        topic = create_topic(self._servers, 1, **{"cleanup.policy": "compact"})
        return Produced(topic, None, value, ())

    def unacknowledged(self, value: bytes) -> Produced:
        """The client waits a while for a topic that is not there."""
        return Produced(self.topic("nowhere"), b"k", value, ())

    def delivered(self) -> list[str]:
        return [(record.value or b"").decode() for record in read_topic(self._servers, self.topic(OUTPUT))]


class Member:
    """Its client, and what the group says to it, in order."""

    def __init__(self, script: Script, name: str) -> None:
        self._script, self._client = script, script.side.member(name)
        self.held: set[Partition] = set()
        self.told: list[tuple[str, list[Any]]] = []
        self.is_closed = False
        self("join", self)

    def __call__(self, name: str, *given: Any) -> Any:
        self._script.called.add(("LaneGroupPort", name))
        return getattr(self._client, name)(*given)

    @property
    def metadata(self) -> Any:
        self._script.called.add(("LaneGroupPort", "metadata"))
        return self._client.metadata

    def assigned(self, partitions: Sequence[Partition]) -> None:
        assert not self.held, "the group takes all before it gives some"
        self.held.update(partitions)
        self.told.append(("assigned", self._script.plain_of(partitions)))

    def revoked(self, partitions: Sequence[Partition]) -> None:
        assert self.held == set(partitions)
        self.held.clear()
        self.told.append(("revoked", self._script.plain_of(partitions)))

    def poll(self) -> None:
        """Nothing is read yet."""
        assert not self("poll", 0.05, 100).messages

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self("close")


class Lane:
    """The producer of a lane as the product makes it, and what it puts into transactions."""

    def __init__(self, script: Script, number: int) -> None:
        self._script, self._number = script, number
        kafka = script.kafka
        producer = initialised(
            lambda: script.call("LaneKafkaPort", kafka, "producer", number, None),
            script.ask("transactional_id", number),
            script.runtime.monotonic() + ENOUGH_S,
            lambda: True,
            script.runtime,
        )
        assert producer is not None
        self.producer: TransactionalProducer = producer

    def begin(self) -> None:
        self.producer.begin()

    def send_offsets(self, group: Any, **positions: int) -> None:
        script = self._script
        given = {script.side.topic(topic): at for topic, at in positions.items()}
        offsets = script.call("LaneKafkaPort", script.kafka, "offsets", self._number, given)
        script.called.add(("client", "send_offsets_to_transaction"))
        self.producer.client.send_offsets_to_transaction(list(offsets), group, 10.0)

    def send_entry(self, **positions: int) -> None:
        given = {self._script.side.topic(topic): at for topic, at in positions.items()}
        self.append(self._script.kafka.positions_topic, LaneEntry(given, {}).encode("p"))

    def append(self, topic: str, value: bytes) -> None:
        self.producer.send_entry(topic, self._number, b"k", value)

    def output(self, *values: bytes) -> None:
        outputs = [Produced(self._script.side.topic(OUTPUT), b"k", value, ()) for value in values]
        self.producer.send_outputs(outputs, self._script.soon())

    def settle(self) -> None:
        """The brokers have it."""
        self.producer.wait_reports(lambda: False)

    def commit(self) -> None:
        self.producer.commit(10.0)

    def abort(self) -> None:
        self.producer.client.abort_transaction(10.0)

    def move(self, group: Any, **positions: int) -> None:
        """A transaction as the product's."""
        self.begin()
        self.send_offsets(group, **positions)
        self.send_entry(**positions)
        self.commit()


class Script(Asking):
    def __init__(self, side: Any) -> None:
        super().__init__(side)
        self.kafka = side.kafka()
        self._order = Order()
        self._members: list[Member] = []
        self._lanes: list[Lane] = []
        self._plain: list[Any] = []
        self.at = {(name, number): Partition(side.topic(name), number) for name in (X, Y) for number in (0, 1)}

    # ---- what a case works with

    def member(self, name: str = "first") -> Member:
        self._members.append(Member(self, name))
        return self._members[-1]

    def joined(self, name: str = "first") -> Member:
        """It has all partitions."""
        member = self.member(name)
        self.until(lambda: member.poll() or len(member.held) == 4)
        return member

    def lane(self, number: int) -> Lane:
        self._lanes.append(Lane(self, number))
        return self._lanes[-1]

    def sender(self) -> Any:
        self._plain.append(self.call("LaneKafkaPort", self.kafka, "plain"))
        return self._plain[-1]

    def note(self, *what: Any) -> None:
        self.lines.append(what)

    def soon(self) -> float:
        return float(self.runtime.monotonic()) + ENOUGH_S

    def until(self, condition: Callable[[], Any]) -> None:
        give_up_at = self.soon()
        while not condition():
            assert self.runtime.monotonic() < give_up_at, "the awaited condition did not come true"
            self.runtime.sleep(0.01)

    def beside(self, job: Callable[[], Any]) -> Callable[[], Any]:
        """Runs it in another thread. Returns how to wait for its result."""
        found: list[Any] = []
        thread = self.runtime.thread(lambda: found.append(job()), "beside")
        thread.start()

        def join() -> Any:
            thread.join(ENOUGH_S)
            return found[0]

        self.runtime.sleep(0.5)
        assert not found, "it does not wait"
        return join

    # ---- what it asks

    def call(self, port: str, asked: Any, name: str, *given: Any) -> Any:
        self.called.add((port, name))
        return getattr(asked, name)(*given)

    def ask(self, name: str, *given: Any) -> Any:
        """The brokers; a list of names is one of topics."""
        answer = self.call("LaneKafkaPort", self.kafka, name, *given)
        self.note(name, self.plain_of(answer))
        return answer

    def positions(self, number: int) -> dict[str, int | None]:
        """Those of the group."""
        self.until(lambda: self._has_coordinator(number))
        found = self.ask("inputs", number)
        return {self.side.plain(topic): state.committed for topic, state in found.items()}

    def _has_coordinator(self, number: int) -> bool:
        """A broker that has just started has none for the group."""
        try:
            self.kafka.inputs(number)
        except CoordinatorLoading:
            return False
        return True

    def entry(self, number: int) -> dict[str, int] | None:
        found = self.ask("entry", number, self.soon())
        return None if found is None else self.plain_of(found.positions)

    def begun(self, number: int) -> Any:
        return self.ask("begun", number, self.soon())

    def fails(self, job: Callable[[], Any]) -> Any:
        """How."""
        try:
            job()
        except _ERRORS as error:
            found = kafka_error(error)
            told = type(error).__name__ if found is None else told_of(found)
            self.note("failed", told)
            return told
        raise AssertionError("it does not fail")

    def read(self, member: Member, count: int, *, at_a_time: int = 100, within_s: float = ENOUGH_S) -> Any:
        """Up to so many messages: the offsets by partition."""
        messages: list[Fetched] = []
        errors: list[Any] = []
        give_up_at = self.runtime.monotonic() + within_s
        while len(messages) < count and not errors and self.runtime.monotonic() < give_up_at:
            polled = member("poll", 0.05, at_a_time)
            assert len(polled.messages) <= at_a_time
            messages += polled.messages
            errors += polled.errors
        self.note(
            "read", sorted((self.side.plain(m.topic), *m[1:3], m.key, m.value, list(m.headers or ())) for m in messages)
        )
        self.note("errors", [(self.plain_of(one.partition), one.name) for one in errors])
        found: dict[tuple[str, int], list[int]] = {}
        for message in messages:
            found.setdefault((self.side.plain(message.topic), message.partition), []).append(message.offset)
        return [one.name for one in errors] or found

    def silent(self, member: Member) -> None:
        assert self.read(member, 1, within_s=0.4) == {}

    # ---- what is written down

    def plain_of(self, value: Any) -> Any:
        if isinstance(value, InputState):
            return value.committed, self._order.nth("topic id", value.topic_id), value.first, value.end
        if isinstance(value, LaneEntry):
            return self.plain_of(value.positions)
        if isinstance(value, Partition):
            return self.side.plain(value.topic), value.number
        if isinstance(value, Mapping):
            return {self.plain_of(key): self.plain_of(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return sorted(map(self.plain_of, value))
        return self.side.plain(value) if isinstance(value, str) else value

    def close(self) -> None:
        for member in self._members:
            member.close()
        for lane in self._lanes:
            lane.producer.drop()
        for sender in self._plain:
            self.call("PlainPort", sender, "close")
        self.call("LaneKafkaPort", self.kafka, "close")


def simulated(case: Callable[[Script], None]) -> Script:
    return play_simulated(case, lambda: Script(SimulatedKafka()))


def real(case: Callable[[Script], None], servers: str) -> Script:
    return play(case, Script(RealKafka(servers)))
