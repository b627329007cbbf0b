"""Whether a topic's log still is the one that a position belongs to. Pure.

Each answer that is not empty is a reason to stop the partition: it names both sides and what to do. A consumer never
jumps to another offset by itself.
"""

from __future__ import annotations

from enum import Enum

from outbox.core.consumers.crashes import DEATHS
from outbox.core.consumers.values import Fetched, Partition, Position

BOUNDS_S = 30.0
"""A new leader may not know for a while how far its log reaches."""

REMEDY = "Stop every process of the consumer, then set the position. Run: python manage.py outbox_positions"
TRUNCATED = frozenset({"_LOG_TRUNCATION"})
UNKNOWN = frozenset(
    {"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "INCONSISTENT_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"}
)
"""The topic was deleted, or a broker does not know it yet."""
OUT_OF_RANGE = frozenset({"OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET"})


def named(partition: Partition) -> str:
    return f"{partition.topic}[{partition.number}]"


def other_topic(partition: Partition, position: Position, topic_id: str | None, confirmed: int | None = None) -> str:
    """A topic that does not exist, or not yet, has no id: that is waited for. `confirmed`: the position when the topic
    had the id of the position for the last time."""
    if not topic_id or topic_id == position.topic_id or not position.topic_id:
        return ""
    last = ""
    if confirmed is not None:
        last = f" The old id was last confirmed at the position {confirmed}; later messages may be of either topic."
    return (
        f"{named(partition)} was created again: the position {position.next} was written for the topic with id "
        f"{position.topic_id}, the topic now has the id {topic_id}.{last} {REMEDY}"
    )


def older_epoch(partition: Partition, position: Position, epoch: int, message: Fetched) -> str:
    return (
        f"{named(partition)} is another log: the message at offset {message.offset} has the leader epoch "
        f"{message.leader_epoch}, one before it had {epoch}; the position is {position.next}. The topic was created "
        f"again, or its log was cut. {REMEDY}"
    )


def truncated(partition: Partition, position: Position, text: str) -> str:
    return (
        f"{named(partition)} was truncated below the position {position.next} (leader epoch {position.leader_epoch}): "
        f"{text}. {REMEDY}"
    )


def row_is_missing(partition: Partition, *, copy: int | None, acknowledged: int | None) -> str:
    """The table has no position of it."""
    if acknowledged is not None:
        return (
            f"{named(partition)} has no row in the table of positions, and this process has committed the position "
            f"{acknowledged}. {REMEDY}"
        )
    if copy is not None:
        return (
            f"{named(partition)} has no row in the table of positions, and the consumer's group has the offset {copy}. "
            f"The table was emptied, or the database is another one. {REMEDY}"
        )
    return ""


def went_back(acknowledged: Position | None, found: Position) -> bool:
    """The database is a copy that lagged when it took over: effects and position were lost together, so the messages
    are handled from there on."""
    return acknowledged is not None and found.next < acknowledged.next


class Bounds(Enum):
    INSIDE = "inside"
    WAIT = "wait"
    OUTSIDE = "outside"


def bounds(position: Position, found: tuple[int, int], waited_s: float) -> Bounds:
    first, end = found
    if first <= position.next <= end:
        return Bounds.INSIDE
    return Bounds.WAIT if waited_s < BOUNDS_S else Bounds.OUTSIDE


def out_of_bounds(partition: Partition, position: Position, found: tuple[int, int]) -> str:
    first, end = found
    side = "expired" if position.next < first else "were lost, or the topic was created again"
    return (
        f"{named(partition)} holds the offsets {first} to {end} and the position is {position.next}: messages {side}. "
        f"{REMEDY}"
    )


def poison(partition: Partition, offset: int) -> str:
    return (
        f"{named(partition)}: the process ended {DEATHS} times while it handled the message at offset {offset} by "
        f"itself. Correct the function and start the consumer again. To leave the message out: {REMEDY}"
    )


def failed(partition: Partition, offset: int, attempts: int, reason: str) -> str:
    return (
        f"{named(partition)}: the message at offset {offset} failed {attempts} times, the last time with {reason}. "
        f"Correct the function and start the consumer again. To leave the message out: {REMEDY}"
    )
