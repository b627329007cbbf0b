"""What a process shows of its partitions to operators. Nobody decides by it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from outbox.core.consumers.values import Partition

FAILING = "failing"
"""A state that is shown in the place of that of the partition: every message fails, so the consumer is at fault."""


COUNT_MAX = 10_000
"""Of rows of held messages. Their number is shown up to here."""


class MessageCounts(NamedTuple):
    """Of one consumer, in all partitions. Each number is at most `COUNT_MAX`."""

    held: int
    """Messages that failed, or wait behind one that did."""
    undecided: int
    """Those that are not tried again before an operator decides."""
    dead: int


class Observed(NamedTuple):
    """One partition, as its owner knows it."""

    partition: Partition
    state: str
    reason: str
    position: int | None
    """What is read next: behind marks of transactions at the end, which are no messages."""
    oldest_ms: int | None
    """When the first message that is not handled was produced; None: unknown, or there is none."""
    handled: int
    """Messages, by this process."""


@dataclass(frozen=True, slots=True)
class ShownPartition:
    """With what Kafka says of it."""

    partition: Partition
    state: str
    reason: str
    stable_offset: int | None
    """The last stable one: what comes from there on is not committed yet. None: unknown."""
    lag: int | None
    """Offsets up to it. Marks of transactions between messages are among them. None: unknown."""
    oldest_age_s: float | None
    """Of the first message that is not handled; 0: there is none; None: unknown."""
    handled: int
    rate: float | None
    """Messages per second, since it was observed before. None: it was not."""


class Earlier(NamedTuple):
    handled: int
    at: float


def shown(
    now: Observed, stable_offset: int | None, *, wall_s: float, at: float, earlier: Earlier | None
) -> ShownPartition:
    """`wall_s` is the time since 1970; `at` and `earlier` are on another clock, which is never set."""
    lag = None if stable_offset is None or now.position is None else max(0, stable_offset - now.position)
    if now.oldest_ms is not None:
        age_s: float | None = max(0.0, wall_s - now.oldest_ms / 1000)
    else:
        age_s = 0.0 if lag == 0 else None
    rate = None
    if earlier is not None and at > earlier.at:
        rate = max(0, now.handled - earlier.handled) / (at - earlier.at)
    return ShownPartition(now.partition, now.state, now.reason, stable_offset, lag, age_s, now.handled, rate)
