"""A member of the group of one processor. The group gives equal partition numbers of all topics to one member.

Only the assignor `range` does that, and its protocol is the eager one: a rebalance takes every partition back, and the
client takes whole assignments. So partitions that are read already are assigned again from where they stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from outbox.core.consumers.values import Partition, Polled
from outbox.edges.kafka.consumers import group
from outbox.edges.kafka.consumers.group import Group

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition


def properties_of(given: Mapping[str, Any], name: str, *, session_timeout_s: float) -> dict[str, Any]:
    """`given` are those of every client."""
    return {
        **group.properties_of(
            {
                "fetch.message.max.bytes": 1024 * 1024,
                "queued.min.messages": 20_000,
                "queued.max.messages.kbytes": 32 * 1024,
                **given,
            },
            name,
            session_timeout_s=session_timeout_s,
        ),
        "client.id": "outbox-graph",
        "partition.assignment.strategy": "range",
    }


class LaneGroup(Group):
    """A `LaneGroupPort`."""

    def __init__(self, properties: Mapping[str, Any], topics: Sequence[str]) -> None:
        super().__init__(properties, topics)
        self._next: dict[Partition, int] = {}
        self._metadata: Any = None

    def poll(self, timeout_s: float, count: int) -> Polled:
        polled = super().poll(timeout_s, count)
        for key, run in groupby(polled.messages, lambda message: message[:2]):
            *_, last = run
            self._next[Partition(*key)] = last.offset + 1
        return polled

    def read_from(self, positions: Mapping[Partition, int]) -> None:
        """Partitions that were paused stay so, also those that were taken back meanwhile."""
        from confluent_kafka import TopicPartition

        self._next.update(positions)
        self._started.update(positions)
        self._client.assign([TopicPartition(*one, self._next[one]) for one in sorted(self._started)])

    @property
    def metadata(self) -> Any:
        """What this member says of itself in transactions, from the assignment on. Every rebalance takes all lanes
        back, so it stays the same as long as a lane lives. The client does not answer while another thread polls."""
        return self._metadata

    def _on_assign(self, client: Any, partitions: list[TopicPartition]) -> None:
        self._metadata = client.consumer_group_metadata()
        client.assign([])  # else all of them, from Kafka's own offsets on
        self._listener.assigned([Partition(one.topic, one.partition) for one in partitions])

    def _on_revoke(self, client: Any, partitions: list[TopicPartition]) -> None:
        found = [Partition(one.topic, one.partition) for one in partitions]
        self._listener.revoked(found)  # first: the group goes on as soon as nothing is assigned
        self._started.clear()
        self._has_stopped = True
        client.unassign()
