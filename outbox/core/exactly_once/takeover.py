"""A takeover, question by question: what is asked next, and what the answers mean. Pure; the lane's thread asks.

The producer is initialised before the first question: older owners can no longer commit. The order of the questions is
what makes the answer right; see `core.exactly_once.decisions`, which gives it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from outbox.core.exactly_once import decisions
from outbox.core.exactly_once.decisions import Decision, Facts, Idle, Rows, StateRow
from outbox.core.exactly_once.ledger import Entry, LedgerEntryError


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The last record of the ledger cannot be understood."""

    text: str


def unreadable(lane: int, error: LedgerEntryError) -> Unreadable:
    return Unreadable(
        f"Lane {lane} is stopped, and the harvester sends and deletes nothing there. {error} Run manage.py "
        f"outbox_resolve --lane {lane} to read what you can do."
    )


class Ask(Enum):
    TABLE = "the state row, and m"
    LEDGER = "whether the ledger topic is as it must be, and the lane's last entry"
    MARK = "the newest change of the lane count that lane 0's last entry knows of"
    PURGED = "m once more"


@dataclass(frozen=True, slots=True)
class CloseForgotten:
    """Close the lanes for this change, which the row has forgotten. It was given up before it was marked, so the owner
    of lane 0 cannot know."""

    change: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Somebody else has ended the change for which the lane was to be settled."""


@dataclass(frozen=True, slots=True)
class Table:
    """What one look has shown."""

    identity: UUID
    state: StateRow
    purged: int


@dataclass(frozen=True, slots=True)
class Last:
    """The lane's last entry; a lane that never committed has none."""

    entry: Entry | None


@dataclass(frozen=True, slots=True)
class Known:
    """What has been answered so far; None: it was not asked."""

    lane: int
    settling: StateRow | None = None
    """The change of the lane count, as the row told it, for which lane 0's owner settles the lane while closed."""
    table: Table | None = None
    last: Last | None = None
    marked: int | None = None
    closed_for: int | None = None
    """The change for which the lanes were closed by this takeover."""
    purged_again: int | None = None
    rows: Rows | None = None

    @property
    def newest_change(self) -> int:
        """Of the lane count, as the last entries of this lane and of lane 0 have it."""
        if self.table is None or self.last is None:
            return self.marked or 0
        return max(decisions.change_of(self.last.entry, self.table.identity), self.marked or 0)


def next_step(known: Known) -> Ask | CloseForgotten | GiveUp | Decision:
    """What to ask or to do next, or the decision. Total."""
    table, last, settling = known.table, known.last, known.settling
    if table is None:
        return Ask.TABLE
    if settling is not None and has_ended(settling, table.state):
        return GiveUp()
    if settling is None and (waiting := decisions.waits_for(known.lane, table.state)) is not None:
        return waiting
    if last is None:
        return Ask.LEDGER
    if known.lane and settling is None:
        if known.marked is None:
            return Ask.MARK
        newest = known.newest_change
        if known.closed_for is None and newest > known.marked and decisions.forgets_change(table.state, newest):
            return CloseForgotten(newest)
    if known.purged_again is None:
        return Ask.PURGED
    return decisions.takeover(
        Facts(
            known.lane,
            table.identity,
            table.state,
            table.purged,
            last.entry,
            known.purged_again,
            known.rows,
            settling=settling is not None,
            newest_change=known.newest_change,
        )
    )


def has_ended(change: StateRow, state: StateRow) -> bool:
    """A change that somebody else has ended is not this one's to go on with."""
    return (state.resize_to, state.resize_no) != (change.resize_to, change.resize_no)


def was_settled(lane: int, state: StateRow, change: int) -> bool:
    """A later change of the lane count than the one with which the lane was taken over has left it without a share, and
    so has fenced and settled it before: what became of its last batch is known, though not to its owner."""
    return state.resize_no > change and isinstance(decisions.waits_for(lane, state), Idle)
