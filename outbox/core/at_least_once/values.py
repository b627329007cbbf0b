"""The values that pass between the scoreboard and the edge that serves it. No decisions here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from outbox.core.holds.values import BACKOFF_MAX_S, BACKOFF_MIN_S


class Record(Protocol):
    """What the scoreboard needs to know of a row; the rest travels with it untouched."""

    @property
    def id(self) -> int: ...
    @property
    def kafka_topic(self) -> str: ...
    @property
    def kafka_key(self) -> str: ...


KeyName = tuple[str, str] | int  # (topic, key); the id alone for a record without key
"""The unit of order. Records without key have none: each is its own unit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Every bound of the scoreboard. Memory: `in_flight_max` + `shards` × `shard_buffer_max` records at most, and the
    ids of `deferred_max` + `shards` × `shard_buffer_max` more. While the large ones among these records have
    `bytes_max` bytes, no others are marked or fetched."""

    in_flight_max: int = 1000
    mark_max: int = 100
    purge_max: int = 1000
    shards: int = 8
    shard_buffer_max: int = 100
    key_buffer_max: int = 20
    deferred_max: int = 10_000
    bytes_max: int = 1 << 62
    mark_backoff_min_s: float = 0.002
    mark_backoff_max_s: float = 0.05
    io_backoff_s: float = 0.5
    outage_backoff_min_s: float = 0.1
    outage_backoff_max_s: float = 2.0
    rejection_backoff_min_s: float = BACKOFF_MIN_S
    rejection_backoff_max_s: float = BACKOFF_MAX_S
    queue_timeout_s: float = 30.0
    delivery_timeout_s: float = 30.0  # longer than the client's own: passed only when a report never comes
    drain_timeout_s: float = 2.0
    sweep_interval_s: float = 30.0

    def __post_init__(self) -> None:
        counts = (
            self.in_flight_max,
            self.mark_max,
            self.purge_max,
            self.shards,
            self.key_buffer_max,
            self.deferred_max,
            self.bytes_max,
        )
        assert min(counts) >= 1
        assert self.shard_buffer_max >= self.key_buffer_max


# ---- effects: statements carry a ticket, which their outcome names


@dataclass(frozen=True, slots=True)
class TakeLane:
    """Make marks of older owners impossible, see the protocol of the scoreboard."""

    ticket: int
    leader_id: UUID
    epoch: int


@dataclass(frozen=True, slots=True)
class Mark:
    ticket: int
    leader_id: UUID
    limit: int
    exclude: tuple[tuple[str, str], ...]  # (topic, key) pairs that have no room here


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read again, by id, rows that are marked by `leader_id` and were not kept in memory."""

    ticket: int
    leader_id: UUID
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Purge:
    ticket: int
    leader_id: UUID
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reset:
    ticket: int
    leader_id: UUID
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Read the ids of at most `limit` rows marked by `leader_id`."""

    ticket: int
    leader_id: UUID
    limit: int


@dataclass(frozen=True, slots=True)
class Send:
    generation: int
    shard: int
    records: Sequence[Record]


@dataclass(frozen=True, slots=True)
class DropProducers:
    """Purge the queues of all producers and throw them away; the next Send carries the new generation."""

    generation: int


@dataclass(frozen=True, slots=True)
class RefreshLeader:
    """A forced remark: get a new leader id from the election and call `refreshed`."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Everything in flight is decided after `finish`."""


# ---- events: to be logged, counted, announced


ROWS_TAKEN = "rows-taken"
"""Rows are gone that were marked here: another owner may be at work, or somebody deletes records."""


@dataclass(frozen=True, slots=True)
class RemarkRequested:
    reason: str

    @property
    def asks_election(self) -> bool:
        """Whether the lane is still this process's."""
        return self.reason == ROWS_TAKEN


@dataclass(frozen=True, slots=True)
class RecordHeld:
    """A rejected record holds back its key until `retry_at`."""

    id: int
    name: KeyName
    attempts: int
    retry_at: float
    error: str
    topic: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class NotPurged:
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeadlineExceeded:
    """`kind`: queue (a key waits too long for its turn) or delivery (a report never came). Once per episode."""

    kind: str
    name: KeyName
    waited_s: float


@dataclass(frozen=True, slots=True)
class LaneSuperseded:
    """The table refused the takeover: a newer owner is there. Tell the election (`step_down`)."""

    leader_id: UUID


Effect = (
    TakeLane
    | Mark
    | Fetch
    | Purge
    | Reset
    | Sweep
    | Send
    | DropProducers
    | RefreshLeader
    | Finished
    | RemarkRequested
    | RecordHeld
    | NotPurged
    | DeadlineExceeded
    | LaneSuperseded
)


@dataclass(frozen=True, slots=True)
class Statistics:
    """One consistent view for status, logs, metrics and tests."""

    in_flight: int  # sent and not yet purged
    ready: int
    buffered: int
    deferred: int
    held: int
    marked_total: int
    acknowledged_total: int
    purged_total: int
    undelivered_total: int
    rejected_total: int
    remarks_total: int
