"""What a purge of committed batches does: which of them at once, what is settled one by one, what it proves. Pure.

A purge is repeated until it succeeds. Batches of several lanes are purged in one transaction. If rows of one survive
their DELETE, the others are purged without it. A batch whose number did not move is looked at again by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from outbox.core.exactly_once import decisions
from outbox.core.exactly_once.decisions import LookUpRows, MoveOnly, Purged, PurgeEntry, Rows, Stop
from outbox.core.exactly_once.ledger import Entry
from outbox.core.holds.values import HoldActions

_RETRY_MIN_S, _RETRY_MAX_S = 0.1, 2.0


@dataclass(frozen=True, slots=True)
class BatchPurge:
    """One committed batch whose rows are to be deleted."""

    entry: Entry
    filenode: int
    hold_actions: HoldActions | None = None
    """Done in the same transaction, if the purge moves m itself."""
    server: str = ""
    """From which the rows were read, see `backends.server_of`."""


def pause_s(attempt: int) -> float:
    """Before a purge that has failed is tried again. The first attempt is number 0."""
    return min(_RETRY_MAX_S, _RETRY_MIN_S * float(2 ** min(attempt, 8)))


def of_server(purges: Sequence[BatchPurge], server: str) -> list[BatchPurge]:
    """Those that may be tried there: a copy that has taken over may draw ids a second time that were read of the server
    before it."""
    return [purge for purge in purges if purge.server == server]


def without_lane(purges: Sequence[BatchPurge], lane: int) -> list[BatchPurge]:
    return [purge for purge in purges if purge.entry.lane != lane]


def is_plain(purges: Sequence[BatchPurge]) -> bool:
    """One statement is enough, which is a transaction by itself."""
    return len(purges) == 1 and purges[0].hold_actions is None


def to_settle(
    purges: Sequence[BatchPurge], moved: Collection[BatchPurge], stopped: Collection[int]
) -> Iterator[BatchPurge]:
    """Those that have moved nothing, and whose lanes are not to be stopped: not by one of them either."""
    return (purge for purge in purges if purge not in moved and purge.entry.lane not in stopped)


def settle_step(
    entry: Entry, purged: int, rows: Rows | None = None
) -> Purged | LookUpRows | PurgeEntry | MoveOnly | Stop:
    """What to do about a batch whose purge has moved nothing; `purged` is m, read since. It is done already, or the
    table's file has changed, and then the rows are compared first. Total."""
    judged = decisions.after_purge(entry, purged)
    return decisions.settle(entry, rows) if isinstance(judged, LookUpRows) else judged


def ids_of(step: PurgeEntry | MoveOnly) -> Sequence[int]:
    """Which rows are deleted while m is moved."""
    return step.entry.ids if isinstance(step, PurgeEntry) else ()


# ---- what a purge proves


@dataclass(frozen=True, slots=True)
class Flushed:
    """Everything that this server showed since then, and before the purge was sent, is on its disk."""

    since: float
    server: str


def proves_flush(attempt: int, moved: Collection[BatchPurge]) -> bool:
    """Only an attempt that moved m of a lane has a commit of its own, and only the first one is known to be later than
    the read."""
    return attempt == 0 and bool(moved)


def may_flush(submitted_at: float, returned_at: float) -> bool:
    """Whether a purge can take the place of the flush: it was sent after the read had returned. Whether it did, only
    its outcome tells."""
    return submitted_at >= returned_at


def has_flushed(found: Flushed | None, server: str, asked_at: float) -> bool:
    """Whether what a read of this server has shown is on its disk; the read was sent at `asked_at`."""
    return found is not None and found.server == server and found.since <= asked_at
