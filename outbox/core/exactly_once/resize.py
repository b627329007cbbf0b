"""A change of the lane count, as the owner of lane 0 sees it: what the state row asks for, what is settled, and when
there is no way back. Pure; the thread of lane 0 acts, and looks at the row again after each act.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from uuid import UUID

from outbox.core.exactly_once import decisions
from outbox.core.exactly_once.decisions import Closed, StateRow, Stop
from outbox.core.exactly_once.ledger import Entry


class Act(Enum):
    STANDS = "the count stands"
    REFUSE = "what is asked for is so already"
    BEGIN = "make room for the new lanes, then close all"
    SETTLE = "settle every lane, then open them"


def next_act(state: StateRow) -> Act:
    """Total."""
    if state.resize_to is not None:
        return Act.SETTLE
    if state.wanted is None:
        return Act.STANDS
    return Act.REFUSE if state.wanted == state.lane_count else Act.BEGIN


def while_ledger_is_open(state: StateRow) -> StateRow | None:
    """What may be gone on with while the mark cannot be read: an owner died in the middle of a transaction, which only
    the taking over of lane 0 ends. That looks at the mark too, so what is requested waits for the next time. None:
    nothing, as lanes that are closed need the mark."""
    return replace(state, wanted=None) if state.resize_to is None else None


def is_repair(state: StateRow) -> bool:
    """The lanes are not closed for another count, but because the database forgot a change."""
    return state.resize_to == state.lane_count


def lanes_to_settle(state: StateRow, partitions: int) -> Iterable[int]:
    """Lane 0 last: its mark is the sign that the lanes may have been opened. In a repair every lane that ever was."""
    return reversed(range(max(state.lane_count, partitions) if is_repair(state) else state.lane_count))


def may_have_been_open(state: StateRow, marked: int | None) -> bool:
    """Lanes may have worked with the new count, or, in a repair, with any: then there is no way back. `marked` is the
    newest change that the ledger knows of; None: it does not say."""
    return is_repair(state) or marked is None or marked >= state.resize_no


@dataclass(frozen=True, slots=True)
class Opening:
    """With which count the lanes are opened, and what operators are told."""

    lanes: int
    note: str = ""


def as_wanted(state: StateRow) -> Opening:
    assert state.resize_to is not None
    return Opening(state.resize_to)


def given_up(state: StateRow, text: str) -> Opening:
    """Safe before the lanes may have been open: nobody has worked with another count than the old one."""
    return Opening(state.lane_count, f"The lane count was not changed. {text}")


def marked(last: Entry, change: int) -> Entry | None:
    """Lane 0's last entry once more, with the number of the change; None: it has that already."""
    return None if last.change == change else replace(last, change=change)


def judge_idle(lane: int, state: StateRow, database: UUID, purged: int, entry: Entry | None) -> Closed | Stop | None:
    """What the last entry of a lane at or above the count forbids every lane. Closed: lane 0's owner knows better than
    an operator."""
    stop = decisions.idle_lane(lane, state.lane_count, database, purged, entry)
    if stop is not None and decisions.forgets_change(state, decisions.change_of(entry, database)):
        return Closed(state.lane_count)
    return stop


class GoodPartitions:
    """Those at or above the count that agree with the table. After a large shrink there are many, and what was found
    must not be lost because one of them answers late. The lanes of a process share them without a lock, and only save
    each other work: what one has found counts for looks over the same connection only."""

    def __init__(self) -> None:
        self._all_of: tuple[float, int] | None = None  # of which connection and count every one was found good
        self._some: tuple[tuple[float, UUID, int, int] | None, set[int]] = None, set()
        """Of which connection, database, count and change, and which: always both at once."""

    def has_all(self, opened_at: float, state: StateRow) -> bool:
        return self._all_of == (opened_at, state.lane_count)

    def begin(self, opened_at: float, database: UUID, state: StateRow) -> set[int]:
        """Those found good so far; the look adds what it finds. What was found over another connection, or of another
        count, says nothing: a look that still goes on over an older one adds to its own set."""
        of = opened_at, database, state.lane_count, state.resize_no
        some = self._some
        if some[0] != of:
            some = self._some = of, set()
        return some[1]

    def found_all(self, opened_at: float, state: StateRow) -> None:
        self._all_of = opened_at, state.lane_count
