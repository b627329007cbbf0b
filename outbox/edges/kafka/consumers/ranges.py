"""Reads ranges of partitions, in place of what a group would assign. It joins no group, and commits no offset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outbox.core.consumers.values import Partition, Polled
from outbox.edges.kafka.consumers.group import Group, Listener


class Ranges(Group):
    """One thread calls it, from `join` to `close`."""

    def __init__(self, properties: Mapping[str, Any], ends: Mapping[Partition, int]) -> None:
        """`ends`: the offsets at which the partitions end for the caller."""
        super().__init__(properties, ())
        self._ends = dict(ends)

    def join(self, listener: Listener) -> None:
        super().join(listener)
        listener.assigned(sorted(self._ends))

    def poll(self, timeout_s: float, count: int) -> Polled:
        """A partition is read no further once its end is reached."""
        polled = super().poll(timeout_s, count)
        reached = {partition for partition, end in polled.ends.items() if end >= self._ends[partition]}
        messages = []
        for message in polled.messages:
            partition = Partition(*message[:2])
            if message.offset < self._ends[partition]:
                messages.append(message)
            else:
                reached.add(partition)
        if reached:
            self._unassign(sorted(reached))
        return Polled(messages, polled.errors, {partition: self._ends[partition] for partition in reached})

    def commit_copy(self, positions: Mapping[Partition, int]) -> None:
        """Kafka's own offsets are those of the consumer."""
