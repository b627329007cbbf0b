"""Where the worker of one at-least-once lane stands, beside the phase of its term. Pure.

The lane's thread changes it; other threads only read whether it is stopped or has ended.
"""

from __future__ import annotations

from enum import Enum

from outbox.core.at_least_once.scoreboard import Phase
from outbox.core.contract import STOPPED
from outbox.core.region import Region, Transitions


class SentRows(Enum):
    """Whether the rows of records that were sent can be deleted."""

    GONE = "gone"
    KEPT = "kept"
    """Some survive their DELETE, which is tried again and again. Nothing more is marked or sent until they are gone."""


class Deleted(Enum):
    NOT = "rows survive their DELETE"
    DONE = "rows are deleted, or the term has begun again: nothing is left whose DELETE would be repeated"


SENT_ROWS = Transitions(
    "rows that were sent",
    SentRows.GONE,
    {
        **{(state, Deleted.NOT): SentRows.KEPT for state in SentRows},
        **{(state, Deleted.DONE): SentRows.GONE for state in SentRows},
    },
)


class WorkerLife(Enum):
    LIVES = "lives"
    ENDED = "ended"


class WorkerEvent(Enum):
    ENDS = "the thread ends"


WORKER = Transitions(
    "worker of an at-least-once lane",
    WorkerLife.LIVES,
    {(WorkerLife.LIVES, WorkerEvent.ENDS): WorkerLife.ENDED},
)


class Answers(Enum):
    """Of the brokers, as far as the last reports tell."""

    UNKNOWN = "unknown"
    GOOD = "good"
    """Records are acknowledged."""


class Reported(Enum):
    ACKNOWLEDGED = "records are acknowledged"
    UNDELIVERED = "records could not be delivered"


ANSWERS = Transitions(
    "answers of the brokers",
    Answers.UNKNOWN,
    {
        **{(state, Reported.ACKNOWLEDGED): Answers.GOOD for state in Answers},
        **{(state, Reported.UNDELIVERED): Answers.UNKNOWN for state in Answers},
    },
)


class MarkLane:
    """Owned by the lane's thread; `has_ended` and `shown` are for any."""

    def __init__(self) -> None:
        self._rows, self._answers, self._life = Region(SENT_ROWS), Region(ANSWERS), Region(WORKER)
        self._stopped_for = ""
        """Why it is stopped, or was at last."""

    def kept(self, reason: str) -> bool:
        """Rows survive their DELETE. Whether that is news."""
        is_news = not (self.is_stopped and reason == self._stopped_for)
        self._stopped_for = reason
        self._rows.on(Deleted.NOT)
        return is_news

    def gone(self) -> None:
        self._rows.on(Deleted.DONE)

    def ends(self) -> None:
        self._life.on(WorkerEvent.ENDS)

    def reported(self, event: Reported) -> None:
        self._answers.on(event)

    @property
    def is_stopped(self) -> bool:
        return self._rows.state is SentRows.KEPT

    @property
    def has_ended(self) -> bool:
        return self._life.state is WorkerLife.ENDED

    @property
    def is_delivering(self) -> bool:
        return self._answers.state is Answers.GOOD

    def shown(self, phase: Phase) -> str:
        """What people are shown."""
        return STOPPED if self.is_stopped else phase.value

    def may_go_on(self, phase: Phase, *, is_trusted: bool, knows_holds: bool) -> bool:
        """Whether to mark and to send. `is_trusted`: the election and the lease allow it. Who finishes only sends what
        it has."""
        return is_trusted and (phase is Phase.FINISHING or (knows_holds and not self.is_stopped))
