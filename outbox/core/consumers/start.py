"""Where a partition is read from when it is assigned. Pure.

Its row says it. If a topic has no row at all, this is the first assignment: `start` is resolved for every partition of
the topic and the rows are committed before anything is read. A partition that was added later begins at its first
offset: its messages were written after the consumer had begun.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outbox.core.consumers import log
from outbox.core.consumers.values import EARLIEST, Partition, Position


@dataclass(frozen=True, slots=True)
class Placing:
    """What is known of the partitions of one topic."""

    wanted: Sequence[Partition]
    """Those that were assigned."""
    count: int
    """How many partitions the topic has."""
    topic_id: str | None
    """None: it does not exist, or not yet."""
    rows: Mapping[Partition, Position]
    """Of all partitions of the topic."""
    copies: Mapping[Partition, int]
    """The group's offsets. They were asked for before the rows: an owner creates rows first, and copies them later."""
    acknowledged: Mapping[Partition, Position]
    """What this process has committed of them."""


@dataclass(frozen=True, slots=True)
class Places:
    found: Mapping[Partition, Position]
    stopped: Mapping[Partition, str]
    create: Mapping[Partition, str | int]
    """Rows that are missing, and the `start` of each. When they are committed the rows are loaded again, because
    another process may have been first."""


def places(placing: Placing, start: str | int) -> Places:
    """Partitions that are in none of the answers wait for their topic."""
    if not placing.topic_id:
        return Places({}, {}, {})
    found, stopped, missing = {}, {}, []
    for partition in placing.wanted:
        position, acknowledged = placing.rows.get(partition), placing.acknowledged.get(partition)
        if position is not None:
            if reason := log.other_topic(partition, position, placing.topic_id):
                stopped[partition] = reason
            else:
                found[partition] = position
        elif reason := log.row_is_missing(
            partition,
            copy=placing.copies.get(partition),
            acknowledged=None if acknowledged is None else acknowledged.next,
        ):
            stopped[partition] = reason
        else:
            missing.append(partition)
    return Places(found, stopped, _to_create(placing, missing, start))


def _to_create(placing: Placing, missing: Sequence[Partition], start: str | int) -> Mapping[Partition, str | int]:
    if not missing:
        return {}
    if placing.rows:
        return dict.fromkeys(missing, EARLIEST)
    topic = missing[0].topic
    every = [Partition(topic, number) for number in range(placing.count)]
    return {partition: start for partition in every if partition not in {*placing.copies, *placing.acknowledged}}
