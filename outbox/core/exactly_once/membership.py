"""How a lane joins the rounds of its process, and how it leaves them. Pure.

A lane that leaves in good time settles what it has in flight first, so that another delivery mode may follow. What it
cannot settle, the next owner settles; until then the process keeps its lease.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from outbox.core.exactly_once.flights import Standing


class Joining(Enum):
    ENDED = "these rounds have ended: the lane needs others"
    TOO_LATE = "the lane's thread began late, and its worker was replaced before"
    REPLACES = "the worker before is abandoned, and has not noticed yet"
    JOINS = "nobody else works on the lane"


def joining(lane: Standing, earlier: Standing | None, *, is_ending: bool) -> Joining:
    """Total. `earlier`: who works on the lane so far."""
    if is_ending:
        return Joining.ENDED
    if earlier is None:
        return Joining.JOINS
    return Joining.TOO_LATE if earlier.serial > lane.serial else Joining.REPLACES


def may_release_lease(lanes: Iterable[Standing], *, is_kept: bool, is_ending: bool, has_unsettled: bool) -> bool:
    """The last lane that leaves gives the lease back. While something is unsettled another mode would send what may be
    in Kafka, or come to be: it waits until the lease is old."""
    return is_kept and not is_ending and not has_unsettled and all(lane.is_leaving for lane in lanes)


class LeaveStep(Enum):
    ASK_STATE_ROW = "ask whether a later change of the lane count has settled the lane"
    AWAIT_PURGES = "wait for the purges of the lane"
    GIVE_BACK = "note the clean release, and give back the lease if this lane is the last one"


@dataclass(frozen=True, slots=True)
class Unclean:
    """The lane leaves something behind, which its next owner settles."""

    reason: str


@dataclass(frozen=True, slots=True)
class Leaving:
    """What is known so far; None: it was not asked."""

    is_in_doubt: bool
    """Whether Kafka committed the last batch is not known."""
    was_settled: bool | None = None
    """By a later change of the lane count."""
    is_purged: bool | None = None
    may_have_left_rows: bool = False
    """Kafka has them, and the table may have them too; known when the purges were waited for."""


def next_step(known: Leaving) -> LeaveStep | Unclean:
    """Total."""
    if known.is_in_doubt and known.was_settled is None:
        return LeaveStep.ASK_STATE_ROW
    if known.is_in_doubt and not known.was_settled:
        return Unclean("The lane does not know whether Kafka committed its last batch.")
    if known.is_purged is None:
        return LeaveStep.AWAIT_PURGES
    if not known.is_purged:
        return Unclean("PostgreSQL did not confirm the last purge in time.")
    if known.may_have_left_rows:
        return Unclean("The lane is stopped, and the table may hold records that Kafka already has.")
    return LeaveStep.GIVE_BACK
