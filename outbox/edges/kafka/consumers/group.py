"""A member of the group of one consumer: fetches messages of the partitions that the group gives it.

Where reading begins is in PostgreSQL, and the callback of a rebalance may not wait for that. So the callback assigns
nothing, and `start` adds partitions when their positions are known. Kafka's own offsets are never read from: the client
is told to report a position that it cannot read, and not to go elsewhere.

The client compares the epoch of a position with the log when a leader changes while it reads, and not when it begins to
read. So reading begins at the message before the position, if its epoch is known: another message in its place has
another epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, repeat
from operator import itemgetter, not_
from typing import TYPE_CHECKING, Any, Protocol

from outbox.core.consumers.values import ClientError, Fetched, Partition, Polled, Position
from outbox.edges.kafka.common.client_log import ClientLog
from outbox.edges.kafka.common.clients import let_go, make, require_bootstrap
from outbox.exceptions import missing_extra

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition

LOGGER = "outbox.consumers.librdkafka"
_ERRORS_MAX = 100


class Listener(Protocol):
    """Called within `poll` and `close`. Does not block."""

    def assigned(self, partitions: Sequence[Partition]) -> None: ...

    def revoked(self, partitions: Sequence[Partition]) -> None: ...


def group_id(name: str, consumer: str) -> str:
    """Of the consumer `consumer` in the application NAME."""
    return f"{name}.{consumer}"


def properties_of(given: Mapping[str, Any], group: str, *, session_timeout_s: float) -> dict[str, Any]:
    """`given` are those of every client."""
    session_ms = int(session_timeout_s * 1000)
    return {
        # Little in advance: it is memory, and a partition with few messages waits behind it.
        "fetch.message.max.bytes": 256 * 1024,
        "queued.min.messages": 5_000,
        "queued.max.messages.kbytes": 16 * 1024,
        "fetch.queue.backoff.ms": 10,
        **given,
        "client.id": "outbox-consumer",
        "group.id": group,
        "group.protocol": "classic",
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": max(50, session_ms // 6),
        # A rebalance waits so long for a member that does not poll.
        "max.poll.interval.ms": 5 * session_ms,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "allow.auto.create.topics": False,
        # Partitions are added, and topics created, while it runs.
        "topic.metadata.refresh.interval.ms": 10_000,
        "fetch.error.backoff.ms": 50,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "retry.backoff.ms": 50,
        "socket.nagle.disable": True,
        "log.connection.close": False,
    }


class Group:
    """One thread calls it, from `join` to `close`."""

    def __init__(self, properties: Mapping[str, Any], topics: Sequence[str]) -> None:
        """`properties` as `properties_of` makes them; `topics` are those of the beginning."""
        require_bootstrap(properties)
        self._properties, self._topics = dict(properties), list(topics)
        self._started: set[Partition] = set()
        self._before: dict[Partition, Position] = {}
        """Positions of which the message before is read first."""
        self._errors: list[ClientError] = []
        self._has_stopped = False
        """Partitions were stopped or revoked in this poll, and it may have fetched their messages before."""

    def join(self, listener: Listener) -> None:
        """Asks for the partitions of the topics."""
        self._listener = listener
        self._client: Consumer = make(
            _consumer(), {**self._properties, "error_cb": self._note, "logger": ClientLog(LOGGER)}
        )
        self.subscribe(self._topics)

    def subscribe(self, topics: Sequence[str]) -> None:
        """In the place of those before."""
        if not topics:
            self._client.unsubscribe()
            return
        self._client.subscribe(
            list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )

    def poll(self, timeout_s: float, count: int) -> Polled:
        """Returns as soon as something is there."""
        self._has_stopped = False
        found, failure = self._fetch(timeout_s, count)
        events, found = _divided(found)
        ends = self._sort(events)
        messages = _fetched(found) if found else []
        if self._before:
            messages = self._compared(messages)
        errors, self._errors = self._errors, []
        if failure is not None:
            errors.append(failure)
        started = self._started
        if self._has_stopped:
            messages = [message for message in messages if message[:2] in started]
        return Polled(messages, errors, {partition: end for partition, end in ends.items() if partition in started})

    def _compared(self, messages: list[Fetched]) -> list[Fetched]:
        """Without the messages before the positions."""
        kept = []
        for message in messages:
            partition = Partition(message.topic, message.partition)
            position = self._before.pop(partition, None)
            if position is None or message.offset >= position.next:
                kept.append(message)
            elif message.leader_epoch != position.leader_epoch:
                self._unassign([partition])
                text = (
                    f"the message at offset {message.offset} has the leader epoch {message.leader_epoch}, and the one "
                    f"that was handled there had {position.leader_epoch}"
                )
                self._errors.append(ClientError(partition, "_LOG_TRUNCATION", text))
        return kept

    def start(self, positions: Mapping[Partition, Position]) -> None:
        """Reads assigned partitions from these positions on."""
        before = {partition: one for partition, one in positions.items() if one.next > 0 and one.leader_epoch >= 0}
        self._assign({**positions, **{partition: Position(one.next - 1) for partition, one in before.items()}})
        self._before.update(before)

    def stop(self, partitions: Sequence[Partition]) -> None:
        """Reads them no longer, and keeps them assigned."""
        self._unassign(partitions)

    def pause(self, partitions: Sequence[Partition]) -> None:
        self._client.pause(_client_partitions(self._started.intersection(partitions)))

    def resume(self, partitions: Sequence[Partition]) -> None:
        self._client.resume(_client_partitions(self._started.intersection(partitions)))

    def commit_copy(self, positions: Mapping[Partition, int]) -> None:
        """Does not wait, and nobody reads from it: an error is no news."""
        from confluent_kafka import KafkaException

        copies = [_at(partition, Position(next)) for partition, next in positions.items()]
        if copies:
            try:
                self._client.commit(offsets=copies, asynchronous=True)
            except KafkaException as error:
                let_go(error)

    def close(self) -> None:
        """Leaves the group."""
        self._client.close()

    # ---- the client's calls

    def _fetch(self, timeout_s: float, count: int) -> tuple[list[Any], ClientError | None]:
        """The first message is waited for; what is there by then comes with it: `consume` alone would wait until it has
        them all."""
        from confluent_kafka import KafkaException

        found: list[Any] = []
        try:
            first = self._client.poll(timeout_s)
            if first is not None:
                found.append(first)
                if count > 1:
                    found += self._client.consume(count - 1, 0)
        except KafkaException as error:
            return found, _error(let_go(error).args[0])
        return found, None

    def _sort(self, events: Iterable[Any]) -> dict[Partition, int]:
        """What the client reports in the place of messages: the ends are returned."""
        ends: dict[Partition, int] = {}
        for event in events:
            error, partition = event.error(), Partition(event.topic(), event.partition())
            if error.name() == "_PARTITION_EOF":
                ends[partition] = event.offset()
                continue
            # What it reports of a whole topic has a partition below 0.
            found = self._started.intersection([partition])
            if partition.number < 0:
                found = {one for one in self._started if one.topic == partition.topic}
            for one in found or (None,):
                self._hear(_error(error, one))
        return ends

    def _hear(self, error: ClientError) -> None:
        partition = error.partition
        if error.name != "_AUTO_OFFSET_RESET" or partition is None or partition not in self._before:
            self._errors.append(error)
            return
        position = self._before[partition]  # the message before it has expired
        self._unassign([partition])
        self._assign({partition: position})

    def _assign(self, positions: Mapping[Partition, Position]) -> None:
        self._client.incremental_assign([_at(partition, position) for partition, position in positions.items()])
        self._started.update(positions)

    def _on_assign(self, client: Any, partitions: list[TopicPartition]) -> None:
        client.incremental_assign([])  # else all of them, from Kafka's own offsets on
        self._listener.assigned([Partition(one.topic, one.partition) for one in partitions])

    def _on_revoke(self, client: Any, partitions: list[TopicPartition]) -> None:
        found = [Partition(one.topic, one.partition) for one in partitions]
        self._unassign(found)
        self._listener.revoked(found)

    def _unassign(self, partitions: Sequence[Partition]) -> None:
        """The client takes none that it does not read; without any it is only told that the callback has answered."""
        found = self._started.intersection(partitions)
        self._started -= found
        self._has_stopped = True
        for partition in found:
            self._before.pop(partition, None)
        self._client.incremental_unassign(_client_partitions(found))

    def _note(self, error: Any) -> None:
        """What concerns no partition. It repeats itself while a broker is away."""
        if len(self._errors) < _ERRORS_MAX:
            self._errors.append(_error(error))


def _consumer() -> Any:
    try:
        from confluent_kafka import Consumer
    except ImportError as error:
        missing_extra("harvest", error)
    return Consumer


def _divided(found: list[Any]) -> tuple[list[Any], list[Any]]:
    """What the client reports in the place of messages, and the messages."""
    errors = [message.error() for message in found]
    if not any(errors):
        return [], found
    return list(compress(found, errors)), list(compress(found, map(not_, errors)))


def _fetched(found: Sequence[Any]) -> list[Fetched]:
    """Field by field, because a call of Python for each message takes longer than all of this."""
    kind = type(found[0])
    epochs = [-1 if epoch is None else epoch for epoch in map(kind.leader_epoch, found)]
    fields = zip(
        map(kind.topic, found),
        map(kind.partition, found),
        map(kind.offset, found),
        epochs,
        map(kind.key, found),
        map(kind.value, found),
        found,  # the headers are read when they are asked for
        map(itemgetter(1), map(kind.timestamp, found)),
        strict=True,
    )
    return list(map(tuple.__new__, repeat(Fetched), fields))


def _error(error: Any, partition: Partition | None = None) -> ClientError:
    name, text = error.name(), error.str()
    if name == "_AUTO_OFFSET_RESET" and "truncation" in text.lower():
        name = "_LOG_TRUNCATION"  # what the client would have gone elsewhere for
    return ClientError(partition, name, text)


def _at(partition: Partition, position: Position) -> TopicPartition:
    from confluent_kafka import TopicPartition

    return TopicPartition(partition.topic, partition.number, position.next, leader_epoch=position.leader_epoch)


def _client_partitions(partitions: Iterable[Partition]) -> list[TopicPartition]:
    from confluent_kafka import TopicPartition

    return [TopicPartition(partition.topic, partition.number) for partition in partitions]
