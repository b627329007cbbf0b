"""The checks at the brokers before a member joins: session limits, and a leader topic with enough partitions."""

from __future__ import annotations

import logging
import time
from threading import Event
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outbox.conf import AT_LEAST_ONCE, Conf
from outbox.core.election import neli
from outbox.edges.kafka.common.clients import brokers_at_work
from outbox.edges.kafka.common.disposal import dispose
from outbox.election.clients import Clients, heartbeat_of
from outbox.election.errors import ElectionRefused, KafkaUnreachable, foreign_database, is_outage
from outbox.election.ports import HeartbeatReader

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

logger = logging.getLogger("outbox.election")

REQUEST_TIMEOUT_S = 5.0
# Heartbeats are worthless after seconds; a small topic keeps the start of every reader quick. Their times are the
# broker's: it would refuse those of a member whose clock is an hour ahead.
TOPIC_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "600000",
    "segment.ms": "600000",
    "message.timestamp.type": "LogAppendTime",
}
_VISIBLE_TIMEOUT_S = 10.0
_RENEWED_S = 60.0
_LAST_TIMEOUT_S, _LAST_POLL_S, _LAST_MAX = 2.0, 0.005, 100


class _Trouble:
    """The reason of an outage, which the timeout of a request hides. A class of its own, so that no reference cycle
    holds the client."""

    text = ""

    def note(self, error: Any) -> None:
        if error.name() != "_ALL_BROKERS_DOWN":
            self.text = error.str()


class LeaderTopic:
    """The topic of the settings at these brokers. `stopping` ends every wait at once; `close` lets go of the client."""

    def __init__(self, clients: Clients, conf: Conf, stopping: Event) -> None:
        self._trouble = _Trouble()
        self._clients = clients
        self._make_admin()
        self._conf = conf
        self._stopping = stopping

    def _make_admin(self) -> None:
        self._admin: AdminClient = self._clients.admin(self._trouble.note)
        self._made_at = time.monotonic()

    def close(self) -> None:
        """The errors raised here hold this object by their tracebacks. A client that only the collector finds may be
        destroyed in its own thread, which aborts the process."""
        held = [self._admin]
        del self._admin
        dispose(held)

    def prepare(self) -> int:
        """Check limits, create the topic if it is absent; the number of its partitions."""
        if time.monotonic() - self._made_at > _RENEWED_S:
            self._make_admin()  # it may be refused for secrets that have changed
        self._check_session_limits()
        partitions = self._count_partitions()
        if partitions == 0:
            self._create()
            partitions = self._wait_visible()
        # In exactly-once delivery the count is the database's, and the owner of lane 0 adds what is missing.
        if partitions < self._conf.election.lanes and self._conf.delivery == AT_LEAST_ONCE:
            name, lanes = self._conf.election.leader_topic, self._conf.election.lanes
            raise ElectionRefused(
                f"The leader topic {name!r} has {partitions} partitions, but LANES is {lanes}: lanes without a "
                f"partition would have no owner. Set LANES to {partitions}, or add partitions while no harvester runs: "
                f"kafka-topics.sh --alter --topic {name} --partitions {lanes}"
            )
        return partitions

    def look_for_others(self, partitions: int, database: UUID) -> bool:
        """Refuse to join a group whose members harvest another database, before any lane moves to this process. The
        last heartbeat may be that of a process which has ended: only one that follows it counts."""
        from confluent_kafka import KafkaException, TopicPartition

        ends = self._ends(partitions)
        reader = self._clients.reader(self._trouble.note)
        try:
            reader.assign([TopicPartition(self._conf.election.leader_topic, p, end - 1) for p, end in ends.items()])
            self._read_last(reader, ends, database)
        except KafkaException as error:
            if is_outage(error.args[0]):
                raise KafkaUnreachable(f"The harvester cannot read the leader topic: {error.args[0].str()}.") from error
            logger.info("leader_topic_unread reason=%r", error.args[0].str())  # the group will say so too
        finally:
            dispose([reader], lambda client: client.close())
        return True

    def _ends(self, partitions: int) -> dict[int, int]:
        """Of those partitions that hold something and have a leader. Asked by the admin client, whose answers are
        awaited here and not in the client."""
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        all_of_them = [TopicPartition(self._conf.election.leader_topic, number) for number in range(partitions)]
        lows, highs = (
            self._admin.list_offsets(dict.fromkeys(all_of_them, spec), request_timeout=REQUEST_TIMEOUT_S)
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
        )
        ends = {}
        for partition in all_of_them:
            try:
                low, high = (
                    int(self._result(found[partition], "read the ends of the leader topic").offset)
                    for found in (lows, highs)
                )
            except (KafkaException, KafkaUnreachable) as error:
                logger.info("leader_topic_unread reason=%r", f"Partition {partition.partition}: {error}")
                continue
            if low < high:
                ends[partition.partition] = high
        return ends

    def _read_last(self, reader: HeartbeatReader, ends: dict[int, int], database: UUID) -> None:
        awaited, suspected = set(ends), False
        give_up_at = time.monotonic() + _LAST_TIMEOUT_S
        while (awaited or suspected) and time.monotonic() < give_up_at and not self._stopping.wait(_LAST_POLL_S):
            for message in reader.consume(_LAST_MAX, timeout=0):
                if message.error():
                    continue
                number, offset = message.partition() or 0, message.offset() or 0
                awaited.discard(number)
                try:
                    beat = heartbeat_of(message)
                except neli.UnknownHeartbeat:
                    continue
                if not isinstance(beat, neli.Heartbeat) or beat.database in (None, database):
                    continue
                assert beat.database is not None
                if offset >= ends[number]:
                    raise foreign_database(self._conf, database, beat.name, beat.database)
                suspected, give_up_at = True, time.monotonic() + self._conf.election.heartbeat_timeout_s

    def _check_session_limits(self) -> None:
        """The brokers refuse a member whose session timeout is outside their limits, again and again."""
        limits = self._session_limits()
        session_s = self._conf.election.session_timeout_s
        if limits and not limits[0] <= session_s * 1000 <= limits[1]:
            raise ElectionRefused(
                f'OUTBOX["SESSION_TIMEOUT"] is {session_s:g} s, but the brokers accept {limits[0] / 1000:g} to '
                f"{limits[1] / 1000:g} s. Change the setting, or group.min.session.timeout.ms and "
                "group.max.session.timeout.ms of the brokers."
            )

    def _session_limits(self) -> tuple[int, int] | None:
        """None where the user may not ask."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

        try:
            brokers = self._result(brokers_at_work(self._admin, REQUEST_TIMEOUT_S), "list the brokers")
            broker = ConfigResource(ResourceType.BROKER, str(brokers[0]))
            futures = self._admin.describe_configs([broker], request_timeout=REQUEST_TIMEOUT_S)
            found = self._result(futures[broker], "read the limits of the broker")
            return int(found["group.min.session.timeout.ms"].value), int(found["group.max.session.timeout.ms"].value)
        except (KafkaException, KeyError, IndexError, TypeError) as error:
            logger.info("session_limits_unknown reason=%r", str(error))
            return None

    def _count_partitions(self) -> int:
        """0 when there is no such topic."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        name = self._conf.election.leader_topic
        futures = self._admin.describe_topics(TopicCollection([name]), request_timeout=REQUEST_TIMEOUT_S)
        try:
            return len(self._result(futures[name], f"describe the topic {name!r}").partitions)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return 0
            raise ElectionRefused(
                f"The harvester cannot describe the leader topic {name!r}: {error.args[0].str()}. Allow the user "
                f"DESCRIBE, READ and WRITE on it, and READ on the group {self._conf.name!r}."
            ) from error

    def _create(self) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        name, lanes = self._conf.election.leader_topic, self._conf.election.lanes
        topic = NewTopic(name, num_partitions=lanes, replication_factor=-1, config=TOPIC_CONFIG)
        futures = self._admin.create_topics([topic], request_timeout=REQUEST_TIMEOUT_S)
        try:
            self._result(futures[name], f"create the topic {name!r}")
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return  # another member was faster
            raise ElectionRefused(
                f"The leader topic {name!r} does not exist, and the harvester cannot create it: "
                f"{error.args[0].str()}. Allow the user CREATE on it, or run: kafka-topics.sh --create --topic {name} "
                f"--partitions {lanes} --config retention.ms={TOPIC_CONFIG['retention.ms']}"
            ) from error
        logger.info("leader_topic_created topic=%s partitions=%d", name, lanes)

    def _wait_visible(self) -> int:
        deadline = time.monotonic() + _VISIBLE_TIMEOUT_S
        while time.monotonic() < deadline and not self._stopping.wait(0.05):
            if partitions := self._count_partitions():
                return partitions
        raise KafkaUnreachable(
            f"Kafka has created the leader topic {self._conf.election.leader_topic!r}, but does not show it yet."
        )

    def _result(self, future: Any, what: str) -> Any:
        """The future's result; an outage becomes KafkaUnreachable, a refusal stays a KafkaException."""
        from confluent_kafka import KafkaException

        servers = self._conf.kafka.bootstrap_servers
        deadline = time.monotonic() + 2 * REQUEST_TIMEOUT_S
        while not self._stopping.is_set() and time.monotonic() < deadline:
            try:
                return future.result(timeout=0.1)
            except TimeoutError:
                continue
            except KafkaException as error:
                if is_outage(error.args[0]):
                    self._admin.poll(0)  # tells the trouble
                    reason = self._trouble.text or error.args[0].str()
                    raise KafkaUnreachable(
                        f"The harvester cannot {what}: {reason}. {_remedy(reason, servers)}"
                    ) from error
                raise
        raise KafkaUnreachable(f"The harvester cannot {what}: {servers} did not answer.")


def _remedy(reason: str, servers: str) -> str:
    """The client reports a refused handshake as it does a dead broker; only its words tell them apart."""
    if any(word in reason.lower() for word in ("sasl", "ssl", "certificate", "authentication")):
        return "Check security.protocol, sasl.* and ssl.* of the Kafka properties."
    return f"Check that the brokers at {servers} run."
