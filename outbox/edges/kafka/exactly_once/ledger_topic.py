"""The ledger topic: one partition per lane, written only inside the lanes' transactions, read backwards at a takeover.

What an entry says is in `core.exactly_once.ledger`, what follows from it in `core.exactly_once.decisions`. Nobody waits
inside a client: its waits end by the wall clock, and last as much longer when that is set back (`wall_clock`). A client
whose own threads wait for so long is replaced at the next attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outbox.core.exactly_once import ledger
from outbox.core.faults import Kind, kind_of
from outbox.edges.kafka.common.client_log import ClientLog
from outbox.edges.kafka.common.clients import require_bootstrap
from outbox.edges.kafka.common.disposal import dispose
from outbox.exceptions import OutboxError
from outbox.runtime import Runtime
from outbox.runtime.threads import THREADS

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient

logger = logging.getLogger("outbox.kafka")

Record = tuple[bytes, ledger.Headers]
"""Value and headers."""

_REQUEST_S = 5.0
_STEP_FIRST, _STEP_GROWTH = 16, 16
_STABLE_POLL_S = 0.01
_VISIBLE_POLL_S = 0.05
_READ_POLL_S = 0.002
_QUICK_ATTEMPTS, _QUICK_S, _QUICK_PAUSE_S = 5, 0.3, 0.1


class LedgerUnreachable(OutboxError):
    """No broker answers (in time): worth another attempt."""


class LedgerOpen(LedgerUnreachable):
    """A transaction is open in a partition of the ledger: what it hides is not known before it ends."""

    def __init__(self, text: str, end: int) -> None:
        self.end = end
        """Of the partition when it was asked."""
        super().__init__(text)


class LedgerRefused(OutboxError):
    """The topic is not what a ledger must be, or may not be used: an operator must change something."""


class LedgerMissing(OutboxError):
    """The topic, or the lane's partition, is not there."""


class LedgerTopic:
    """The topic at its brokers. Thread-safe; one question at a time."""

    # Of the subclass whose entries are others.
    decode: Callable[[bytes, ledger.Headers], Any] = staticmethod(ledger.decode)
    topic_config: Mapping[str, str] = {}

    def __init__(
        self,
        properties: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
        name: str,
        runtime: Runtime = THREADS,
    ) -> None:
        """`properties`: a function is asked for each client, as secrets may have changed."""
        self.name, self._runtime = name, runtime
        self._given = properties
        require_bootstrap(self._properties())
        self._mutex = runtime.lock("ledger client")
        self._admin_client: AdminClient | None = None
        self._consumer_client: Consumer | None = None

    # ---- what must hold before a lane may use it

    def prepare(self, lanes: int, ledger_retention_s: float) -> None:
        """Create the topic if it is absent; refuse one that would forget entries, or that has too few partitions."""
        with self._mutex:
            partitions = self._count_partitions(self.name)
            if partitions == 0:
                self._create(lanes, ledger_retention_s)
                partitions = self._wait_visible(self.name, 1)
            if partitions < lanes:
                raise LedgerRefused(
                    f"The ledger topic {self.name!r} has {partitions} partitions, but needs {lanes}. Add partitions "
                    f"while no harvester runs: kafka-topics.sh --alter --topic {self.name} --partitions {lanes}"
                )
            policy = self._policy()
            if policy is not None and policy != "compact":
                raise LedgerRefused(
                    f"The ledger topic {self.name!r} has cleanup.policy={policy}: the brokers would delete the entries "
                    "that list what was delivered, and records would be sent twice. Set it to compact: "
                    f"kafka-configs.sh --alter --entity-type topics --entity-name {self.name} "
                    "--add-config cleanup.policy=compact"
                )

    def partitions(self) -> int:
        """0 when there is no such topic."""
        with self._mutex:
            return self._count_partitions(self.name)

    def grow(self, topic: str, partitions: int) -> bool:
        """Give a topic at these brokers at least so many partitions and wait until they are seen; False when it has
        them, or is not there. `LedgerRefused` when it may not have them."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

        with self._mutex:
            if not 0 < (before := self._count_partitions(topic)) < partitions:
                return False
            wanted = [NewPartitions(topic, partitions)]
            try:
                self._result(self._admin().create_partitions(wanted, request_timeout=_REQUEST_S)[topic])
            except KafkaException as error:
                if error.args[0].code() != KafkaError.INVALID_PARTITIONS:  # somebody else was faster
                    raise LedgerRefused(
                        f"The topic {topic!r} has {before} partitions, and the harvester cannot give it {partitions}: "
                        f"{error.args[0].str()}. Allow the user ALTER on it, or run: kafka-topics.sh --alter "
                        f"--topic {topic} --partitions {partitions}"
                    ) from error
            self._wait_visible(topic, partitions)
        logger.info("partitions_added topic=%s partitions=%d before=%d", topic, partitions, before)
        return True

    def _count_partitions(self, topic: str) -> int:
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        futures = self._admin().describe_topics(TopicCollection([topic]), request_timeout=_REQUEST_S)
        try:
            return len(self._result(futures[topic]).partitions)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return 0
            raise self._refused(topic, error, "describe", "DESCRIBE, READ and WRITE") from error

    def _create(self, lanes: int, ledger_retention_s: float) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        config = {
            "cleanup.policy": "compact",
            "min.compaction.lag.ms": str(int(ledger_retention_s * 1000)),
            "segment.bytes": "16777216",
            "min.cleanable.dirty.ratio": "0.1",
            **self.topic_config,
        }
        topic = NewTopic(self.name, num_partitions=lanes, replication_factor=-1, config=config)
        try:
            self._result(self._admin().create_topics([topic], request_timeout=_REQUEST_S)[self.name])
        except KafkaException as error:
            if error.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR:  # perhaps for as long as one is away
                raise self._unreachable(
                    f"Kafka did not create it: {error.args[0].str()}. Start the missing brokers, or lower "
                    "default.replication.factor."
                ) from error
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._refused(self.name, error, "create", "CREATE") from error
        else:
            logger.info("ledger_topic_created topic=%s partitions=%d", self.name, lanes)

    def _wait_visible(self, topic: str, partitions: int) -> int:
        give_up_at = self._runtime.monotonic() + 2 * _REQUEST_S
        while self._runtime.monotonic() < give_up_at:
            if (found := self._count_partitions(topic)) >= partitions:
                return found
            self._runtime.sleep(_VISIBLE_POLL_S)
        raise LedgerUnreachable(f"Kafka has created partitions of the topic {topic!r}, but does not show them yet.")

    def _policy(self) -> str | None:
        """None where the user may not ask."""
        from confluent_kafka import KafkaException

        try:
            return str(self._result(self._configs_of([self.name])[self.name])["cleanup.policy"].value)
        except KafkaException as error:
            logger.info("ledger_policy_unknown topic=%s reason=%r", self.name, str(error))
            return None

    def size_limits(self, topics: Iterable[str]) -> dict[str, int]:
        """How many bytes these topics of records take at a time; without those that this user may not ask about."""
        from confluent_kafka import KafkaException

        limits = {}
        with self._mutex:
            for topic, future in self._configs_of(sorted(topics)).items():
                try:
                    limits[topic] = int(self._result(future)["max.message.bytes"].value or 0)
                except (KafkaException, KeyError, ValueError) as error:
                    logger.info("size_limit_unknown topic=%s reason=%r", topic, str(error))
                except LedgerUnreachable as error:  # nor is the next one
                    logger.info("size_limit_unknown topic=%s reason=%r", topic, str(error))
                    break
        return limits

    def _configs_of(self, topics: Sequence[str]) -> dict[str, Any]:
        """A future for each, of one request."""
        from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        futures = self._admin().describe_configs(resources, request_timeout=_REQUEST_S)
        return {topic: futures[resource] for topic, resource in zip(topics, resources, strict=True)}

    def _refused(self, topic: str, error: Any, what: str, rights: str) -> LedgerRefused:
        kind = "ledger topic" if topic == self.name else "topic"
        return LedgerRefused(
            f"This process cannot {what} the {kind} {topic!r}: {error.args[0].str()}. Allow the user {rights} on it."
        )

    # ---- the last entry

    def last_entry(self, lane: int, give_up_at: float, *, waits: bool = True) -> Any:
        """The lane's last committed entry. To be asked after the lane's producer was initialised: then nothing of an
        older owner can be added any more. Asked before, with an owner's transaction left open, only that initialising
        ends it: who does it next asks without waiting."""
        end = None  # of what is asked about: of a lane at work, there is always a transaction open that began later
        while True:
            try:
                with self._mutex:  # not while it waits: perhaps for another lane of this process
                    return self._last_entry_soon(lane, give_up_at, end)
            except LedgerOpen as error:
                if not waits or self._runtime.monotonic() > give_up_at:
                    raise
                end = error.end
            self._runtime.sleep(_STABLE_POLL_S)

    def _last_entry_soon(self, lane: int, give_up_at: float, end: int | None) -> Any:
        for _ in range(_QUICK_ATTEMPTS):
            begun = self._runtime.monotonic()
            try:
                return self._last_entry(lane, give_up_at, end)
            except LedgerOpen:
                raise
            except LedgerUnreachable:
                self._forget_clients()
                if self._runtime.monotonic() - begun > _QUICK_S:
                    raise
                self._runtime.sleep(_QUICK_PAUSE_S)  # a partition just made, or one that changes its leader
        return self._last_entry(lane, give_up_at, end)

    def _last_entry(self, lane: int, give_up_at: float, end: int | None) -> Any:
        from confluent_kafka import KafkaException

        try:
            high = self._high_watermark(lane) if end is None else end
            low = self._stable_from(lane, high)
            return self._search(lane, low, high, give_up_at)
        except KafkaException as error:
            self._forget_clients()
            raise self._told_apart(error, lane) from error

    def _told_apart(self, error: Any, lane: int) -> LedgerMissing | LedgerUnreachable:
        """A client that never saw the topic finds no leader of a partition, whether it is gone or its broker is."""
        found = error.args[0]
        is_missing = found.name() in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC")
        if is_missing or (found.name() == "_NOENT" and self._count_partitions(self.name) <= lane):
            return LedgerMissing(f"The ledger topic {self.name!r} has no partition {lane}.")
        return self._unreachable(found.str())

    def _high_watermark(self, lane: int) -> int:
        return int(self._result(self._offset(lane, "latest", "READ_UNCOMMITTED")).offset)

    def _offset(self, lane: int, which: str, isolation: str) -> Any:
        """A future."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        partition = TopicPartition(self.name, lane)
        return self._admin().list_offsets(
            {partition: getattr(OffsetSpec, which)()},
            isolation_level=IsolationLevel[isolation],
            request_timeout=_REQUEST_S,
        )[partition]

    def _stable_from(self, lane: int, high: int) -> int:
        """The first offset; raises while something below `high` belongs to an open transaction."""
        asked = [self._offset(lane, which, "READ_COMMITTED") for which in ("earliest", "latest")]
        low, stable = (int(self._result(future).offset) for future in asked)
        if stable < high:
            raise LedgerOpen(
                f"Partition {lane} of the ledger topic {self.name!r} still holds an open transaction below offset "
                f"{high} (stable up to {stable}). Check whether another program writes there.",
                high,
            )
        return low

    def _search(self, lane: int, low: int, high: int, give_up_at: float) -> Any:
        """Backwards in growing steps: markers of transactions occupy offsets too, and compaction leaves gaps."""
        start, step = high, _STEP_FIRST
        while start > low:
            start, step = max(low, high - step), step * _STEP_GROWTH
            last = self._last_between(lane, start, high, give_up_at)
            if last is not None:
                return self.decode(*last)
        return None

    def _last_between(self, lane: int, start: int, high: int, give_up_at: float) -> Record | None:
        last = None
        for last in self._between(lane, start, high, give_up_at):  # noqa: B007
            pass
        return last

    def _between(self, lane: int, start: int, high: int, give_up_at: float) -> Iterator[Record]:
        """What was committed at these offsets, in order, without what says nothing."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        consumer = self._consumer()
        consumer.assign([TopicPartition(self.name, lane, start)])
        try:
            while self._runtime.monotonic() < give_up_at:
                message = consumer.poll(0)
                if message is None:
                    self._runtime.sleep(_READ_POLL_S)
                    continue
                error, offset = message.error(), message.offset() or 0
                if error is None:
                    if offset < high and (value := message.value()) != ledger.BEGINNING:
                        headers: Any = message.headers()  # a list, whatever else may be produced
                        yield value or b"", headers
                    if offset >= high - 1:
                        return
                elif error.code() == KafkaError._PARTITION_EOF:
                    if offset >= high:
                        return
                elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # of a group that it never joins
                    raise KafkaException(error)
        finally:
            consumer.unassign()
        raise self._unreachable(f"The brokers did not deliver partition {lane} in time.")

    # ---- clients

    def _properties(self) -> dict[str, Any]:
        return {
            "reconnect.backoff.ms": 5,
            "reconnect.backoff.max.ms": 1000,
            "socket.nagle.disable": True,
            "log.connection.close": False,
            **(self._given() if callable(self._given) else self._given),
        }

    def _admin(self) -> AdminClient:
        if self._admin_client is None:
            from confluent_kafka.admin import AdminClient

            self._admin_client = AdminClient(self._properties(), logger=ClientLog())
        return self._admin_client

    def _consumer(self) -> Consumer:
        if self._consumer_client is None:
            from confluent_kafka import Consumer

            self._consumer_client = Consumer(
                {
                    **self._properties(),
                    "group.id": f"{self.name}-reader",  # demanded by the client; it never joins a group
                    "isolation.level": "read_committed",
                    "enable.partition.eof": True,
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "error",
                    "allow.auto.create.topics": False,
                    "check.crcs": True,
                    "fetch.wait.max.ms": 10,
                    "fetch.error.backoff.ms": 20,
                    "fetch.queue.backoff.ms": 10,
                },
                logger=ClientLog(),
            )
        return self._consumer_client

    def _forget_clients(self) -> None:
        consumers: list[Any] = [self._consumer_client]
        self._consumer_client = None
        if consumers[0] is not None:
            dispose(consumers, lambda client: client.close(), self._runtime)
        admins, self._admin_client = [self._admin_client], None
        if admins[0] is not None:
            dispose(admins, runtime=self._runtime)

    def close(self) -> None:
        with self._mutex:
            self._forget_clients()

    def _result(self, future: Any) -> Any:
        """A client that was refused for its secrets never has an answer: the next one has the secrets of then."""
        from confluent_kafka import KafkaException

        try:
            return future.result(timeout=2 * _REQUEST_S)
        except TimeoutError as error:
            self._forget_clients()
            raise self._unreachable("The brokers do not answer.") from error
        except KafkaException as error:
            if error.args[0].retriable() or kind_of(error.args[0].name()) is Kind.OUTAGE:
                self._forget_clients()
                raise self._unreachable(error.args[0].str()) from error
            raise

    def _unreachable(self, reason: str) -> LedgerUnreachable:
        servers = self._properties()["bootstrap.servers"]
        return LedgerUnreachable(f"This process cannot use the ledger topic {self.name!r} at {servers}: {reason}")
