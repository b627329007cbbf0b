"""When the first messages behind positions were produced: one bounded fetch by a client that joins no group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from outbox.core.consumers.values import Partition
from outbox.edges.kafka.common.client_log import ClientLog
from outbox.edges.kafka.common.clients import let_go, make
from outbox.edges.kafka.consumers.group import properties_of
from outbox.exceptions import missing_extra
from outbox.runtime.threads import THREADS

if TYPE_CHECKING:
    from confluent_kafka import Consumer

FETCH_S = 5.0
_NO_TIME = 0
# One message of each partition is wanted. Kafka sends a larger one too.
_SMALL = {"queued.min.messages": 1, "fetch.message.max.bytes": 65_536, "fetch.wait.max.ms": 100}


class Head(NamedTuple):
    """The first committed message at a position or behind it."""

    time_ms: int | None
    """When it was produced, since 1970. None: there is no message, or its time is unknown."""
    reason: str = ""
    """Why the time is unknown."""


NOTHING = Head(None)
"""Behind the position there are no messages, or marks of transactions only."""


def heads(
    properties: Mapping[str, Any], group: str, positions: Mapping[Partition, int], *, timeout_s: float = FETCH_S
) -> dict[Partition, Head]:
    """Of each position one. `properties` are those of every client. The group is named for its privileges only."""
    if not positions:
        return {}
    given = {**properties_of(properties, group, session_timeout_s=6.0), **_SMALL, "logger": ClientLog()}
    client: Consumer = make(_consumer(), {**given, "client.id": "outbox-consumer-look"})
    try:
        return _Fetch(client, positions).run(timeout_s)
    finally:
        client.close()


class _Fetch:
    def __init__(self, client: Consumer, positions: Mapping[Partition, int]) -> None:
        self._client, self._positions = client, positions
        self._found: dict[Partition, Head] = {}

    def run(self, timeout_s: float) -> dict[Partition, Head]:
        from confluent_kafka import KafkaException, TopicPartition

        give_up_at = THREADS.monotonic() + timeout_s
        try:
            self._client.assign([TopicPartition(*partition, next) for partition, next in self._positions.items()])
            while self._left() and (left_s := give_up_at - THREADS.monotonic()) > 0:
                if (message := self._client.poll(left_s)) is not None:
                    self._take(message)
        except KafkaException as error:
            reason = let_go(error).args[0].str()
        else:
            reason = f"Kafka did not return the message in {timeout_s:g} s"
        return self._found | dict.fromkeys(self._left(), Head(None, reason))

    def _left(self) -> list[Partition]:
        return [partition for partition in self._positions if partition not in self._found]

    def _take(self, message: Any) -> None:
        partition, error = Partition(message.topic(), message.partition()), message.error()
        if error is None:
            kind, time_ms = message.timestamp()
            is_known = kind != _NO_TIME and time_ms >= 0
            self._settle([partition], Head(time_ms) if is_known else Head(None, "the message has no time"))
        elif error.name() == "_PARTITION_EOF":
            self._settle([partition], NOTHING)
        elif partition.topic is not None:  # else it concerns the group or a broker, and the fetch goes on
            # The client reports an error of a whole topic with a partition below 0.
            whole = [one for one in self._positions if one.topic == partition.topic]
            self._settle(whole if partition.number < 0 else [partition], Head(None, f"{error.name()}: {error.str()}"))

    def _settle(self, partitions: Iterable[Partition], head: Head) -> None:
        from confluent_kafka import TopicPartition

        new = [partition for partition in partitions if partition not in self._found]
        self._found.update(dict.fromkeys(new, head))
        # So that further messages of it do not come before those of others.
        self._client.pause([TopicPartition(*partition) for partition in new])


def _consumer() -> Any:
    try:
        from confluent_kafka import Consumer
    except ImportError as error:
        missing_extra("harvest", error)
    return Consumer
