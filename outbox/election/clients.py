"""The Kafka clients of a member and their properties. A test may inject others with the same methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outbox.conf import Conf
from outbox.core.election import neli
from outbox.edges.kafka.common.client_log import ClientLog
from outbox.edges.kafka.common.clients import make, require_bootstrap
from outbox.election.ports import GroupConsumer, HeartbeatProducer, HeartbeatReader, OnCommit, OnError
from outbox.exceptions import missing_extra

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

DATABASE_HEADER = "outbox-database"
LOGGER = "outbox.election.librdkafka"


class Clients:
    def __init__(self, conf: Conf) -> None:
        require_bootstrap(conf.kafka.client_properties)
        self._conf = conf

    def admin(self, on_error: OnError) -> AdminClient:
        from_extra()
        from confluent_kafka.admin import AdminClient

        return make(AdminClient, self._with(on_error, {"client.id": "outbox-election-admin"}))

    def member(self, on_error: OnError, on_commit: OnCommit) -> GroupConsumer:
        """The consumer that stands in the group."""
        from_extra()
        from confluent_kafka import Consumer

        return make(Consumer, self._with(on_error, {**member_properties(self._conf), "on_commit": on_commit}))

    def reader(self, on_error: OnError) -> HeartbeatReader:
        """The consumer that reads heartbeats: apart from the group, so that a rebalance never stops the reading."""
        from_extra()
        from confluent_kafka import Consumer

        return make(Consumer, self._with(on_error, reader_properties(self._conf)))

    def producer(self, on_error: OnError) -> HeartbeatProducer:
        from_extra()
        from confluent_kafka import Producer

        return make(Producer, self._with(on_error, heartbeat_properties(self._conf)))

    def _with(self, on_error: OnError, properties: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._conf.kafka.client_properties, **properties, "error_cb": on_error, "logger": ClientLog(LOGGER)}


def heartbeat_of(message: Any) -> neli.Heartbeat | neli.GoharvestHeartbeat:
    """Raises `UnknownHeartbeat`."""
    database = dict(message.headers() or ()).get(DATABASE_HEADER)
    try:
        number = UUID(database.decode()) if database else None
    except ValueError:
        number = None
    return neli.parse_heartbeat(message.value(), number)


def from_extra() -> None:
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        missing_extra("harvest", error)


def member_properties(conf: Conf) -> dict[str, Any]:
    session_ms = int(conf.election.session_timeout_s * 1000)
    return {
        "client.id": "outbox-election",
        "group.id": conf.name,
        "group.protocol": "classic",
        "partition.assignment.strategy": conf.election.assignor,
        "session.timeout.ms": session_ms,
        # A member learns of a rebalance by the answer to its heartbeat, so this is part of every takeover.
        "heartbeat.interval.ms": max(
            50, int(min(conf.election.session_timeout_s / 6, conf.election.heartbeat_timeout_s / 8) * 1000)
        ),
        # Also the time that a rebalance waits for a member: a process that hangs loses its lanes after so long.
        "max.poll.interval.ms": 2 * session_ms,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "latest",
        "allow.auto.create.topics": False,
        "topic.metadata.refresh.interval.ms": 60_000,
        **_connections(),
    }


def reader_properties(conf: Conf) -> dict[str, Any]:
    return {
        "client.id": "outbox-election-reader",
        "group.id": conf.name,  # demanded by the client; this consumer assigns itself and never joins
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "latest",
        "allow.auto.create.topics": False,
        "isolation.level": "read_uncommitted",
        "fetch.wait.max.ms": 500,
        "fetch.error.backoff.ms": 50,
        # A broker that has just started may not know the topic yet, and would be asked again after five minutes only.
        "topic.metadata.refresh.interval.ms": 10_000,
        "queued.max.messages.kbytes": 4096,  # a flooded topic costs no more memory than this
        **_connections(),
    }


def heartbeat_properties(conf: Conf) -> dict[str, Any]:
    return {
        "client.id": "outbox-election-heartbeat",
        "linger.ms": 0,
        "delivery.timeout.ms": int(conf.election.heartbeat_timeout_s * 1000),  # an older heartbeat could earn no trust
        "queue.buffering.max.messages": 1000,
        "topic.metadata.refresh.interval.ms": 10_000,  # the net beneath the question when partitions were added
        **_connections(),
    }


def _connections() -> dict[str, Any]:
    return {
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "retry.backoff.ms": 50,
        "socket.nagle.disable": True,
        "log.connection.close": False,
    }
