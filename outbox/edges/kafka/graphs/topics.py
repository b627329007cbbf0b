"""The brokers as the lanes of one processor use them: its inputs, the graph's own topics, and producers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outbox.core.consumers.values import Partition
from outbox.core.graphs import attempts, positions
from outbox.core.graphs.attempts import Begun
from outbox.core.graphs.positions import InputState, LaneEntry
from outbox.core.graphs.values import GraphValue, Processor, lane_id, owner_of
from outbox.edges.kafka.consumers.topics import Topics
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerTopic, LedgerUnreachable
from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer
from outbox.edges.kafka.exactly_once.transactional import properties_of as transactional_properties
from outbox.edges.kafka.graphs.plain import PlainProducer
from outbox.runtime.threads import THREADS

if TYPE_CHECKING:
    from outbox.core.exactly_once import ledger

_PREPARED_S = 2.0


class LaneTopic(LedgerTopic):
    """One of the graph's own topics: a partition for each partition number, shared by the processors."""

    def __init__(
        self, properties: Mapping[str, Any], name: str, processor: str, decode: Callable[[bytes], Any]
    ) -> None:
        super().__init__(properties, name)
        self._processor = processor
        self.decode = lambda value, headers: decode(value)

    def prepare_lanes(self, lanes: int) -> None:
        """Create the topic if it is absent, and add partitions if it has too few."""
        self.grow(self.name, lanes)
        self.prepare(lanes, 0.0)

    def policies(self, topics: Sequence[str]) -> dict[str, str]:
        """Those that the user may read."""
        from confluent_kafka import KafkaException

        found = {}
        with self._mutex:
            for topic, future in self._configs_of(topics).items():
                try:
                    found[topic] = str(self._result(future)["cleanup.policy"].value)
                except (KafkaException, KeyError):
                    continue
        return found

    def _last_between(self, lane: int, start: int, high: int, give_up_at: float) -> Any:
        last: tuple[bytes, ledger.Headers] | None = None
        for record in self._between(lane, start, high, give_up_at):
            if attempts.processor_of(record[0]) == self._processor:
                last = record
        return last


class LaneTopics:
    """A `LaneKafkaPort`. `properties` are those of every client, `producer_properties` those of producers."""

    def __init__(
        self,
        graph: GraphValue,
        processor: Processor,
        properties: Mapping[str, Any],
        producer_properties: Mapping[str, Any],
        *,
        transaction_timeout_s: float,
    ) -> None:
        self._graph, self._processor, self._timeout_s = graph, processor, transaction_timeout_s
        self._producer_properties = producer_properties
        self.positions_topic, self.attempts_topic = graph.positions_topic, graph.attempts_topic
        self._positions = LaneTopic(properties, self.positions_topic, processor.name, positions.decode)
        self._attempts = LaneTopic(properties, self.attempts_topic, processor.name, attempts.decode)
        self._topics = Topics(properties, owner_of(graph.name, processor.name))
        self._prepared: tuple[float, str] = (float("-inf"), "")

    def transactional_id(self, partition: int) -> str:
        return lane_id(self._graph.name, self._processor.name, partition)

    def producer(self, partition: int, request_bytes: int | None) -> TransactionalProducer:
        properties = transactional_properties(
            self._producer_properties, self.transactional_id(partition), transaction_timeout_s=self._timeout_s
        )
        if request_bytes is not None:
            properties["batch.size"] = min(int(properties.get("batch.size") or request_bytes), request_bytes)
        return TransactionalProducer(properties)

    def plain(self) -> PlainProducer:
        return PlainProducer(self._producer_properties, delivery_timeout_s=self._timeout_s)

    def prepare(self) -> str:
        """The lanes of a process ask one after another, and share the answer for a moment."""
        asked_at, text = self._prepared
        now = THREADS.monotonic()
        if text or now > asked_at + _PREPARED_S:
            text = self._prepare()
            self._prepared = now, text
        return text

    def _prepare(self) -> str:
        names = self._processor.topics
        counts = {topic: self._topics.partitions(topic) for topic in names}
        policies = self._positions.policies(names) if self._processor.is_join else {}
        if text := positions.objection(self._processor, counts, policies):
            return text
        for topic in (self._positions, self._attempts):
            topic.prepare_lanes(max(counts.values()))
        return ""

    def entry(self, partition: int, give_up_at: float) -> LaneEntry | None:
        found: LaneEntry | None = self._positions.last_entry(partition, give_up_at)
        return found

    def begun(self, partition: int, give_up_at: float) -> Begun | None:
        found: Begun | None = self._attempts.last_entry(partition, give_up_at)
        return found

    def inputs(self, partition: int) -> Mapping[str, InputState]:
        names = self._processor.topics
        asked = [Partition(topic, partition) for topic in names]
        ids, committed = self._topics.ids(names), self._topics.copies(asked)
        bounds = {one.topic: self._topics.bounds(one) for one in asked}
        if missing := [topic for topic in names if topic not in ids]:
            raise LedgerUnreachable(f"The topic {missing[0]!r} is not there any more.")
        return {one.topic: InputState(committed.get(one), ids[one.topic], *bounds[one.topic]) for one in asked}

    def topic_ids(self) -> Mapping[str, str]:
        return self._topics.ids(self._processor.topics)

    def offsets(self, partition: int, positions: Mapping[str, int]) -> Sequence[Any]:
        from confluent_kafka import TopicPartition

        return [TopicPartition(topic, partition, at) for topic, at in positions.items()]

    def size_limits(self, topics: Iterable[str]) -> Mapping[str, int]:
        return self._positions.size_limits(topics)

    def missing(self, topics: Iterable[str]) -> Mapping[str, str]:
        return {topic: "it does not exist" for topic in topics if not self._topics.partitions(topic)}

    def ends(self) -> Mapping[Partition, int]:
        """Of every partition of the inputs."""
        return self._topics.ends(
            [
                Partition(topic, number)
                for topic in self._processor.topics
                for number in range(self._topics.partitions(topic))
            ]
        )

    def committed(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        """The group's offsets."""
        return self._topics.copies(partitions)

    def close(self) -> None:
        self._positions.close()
        self._attempts.close()
