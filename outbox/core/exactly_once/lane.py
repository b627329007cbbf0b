"""Where the worker of one lane stands. Pure.

The lane's thread changes its activity and decision; other threads only read the phase, and whether it has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from outbox.core.exactly_once.decisions import AskElection, Closed, Idle, Stop
from outbox.core.exactly_once.takeover import Unreadable
from outbox.core.region import Region, Transitions

CLOSED_S = 0.05  # between two looks at whether the lanes are open again
_IDLE_S = 0.5


class Activity(Enum):
    NEW = "new"
    WAITING = "waiting"
    """Until the election lets it start."""
    TAKING_OVER = "taking over"
    READY = "ready"
    """It waits for the next batch."""
    SENDING = "sending"
    BACKING_OFF_TAKEOVER = "backing off from taking over"
    BACKING_OFF_READY = "backing off from being ready"
    BACKING_OFF_SENDING = "backing off from sending"
    """The lane waits before its next takeover. This holds for all three."""
    STOPPED = "stopped"
    """Nothing is sent or deleted until the lane was examined again, which is soon. Then it goes on if an operator has
    decided, or if what was in the way has gone."""
    CLOSED = "closed"
    """The count of lanes is being changed."""
    IDLE = "idle"
    """It lies at or above the count."""
    ENDED = "ended"


class Did(Enum):
    TURN = "it begins anew, without a producer"
    ALLOWED = "the election lets it start"
    TOOK_OVER = "it owns the lane, and has told the rounds"
    DEALT = "a batch was dealt to it"
    DELIVERED = "the batch is done with, and the next may follow"
    FAILED = "nobody is to blame, or the election is asked"
    STOPPED = "it must not go on, and says why"
    FOUND_CLOSED = "the lanes are closed"
    FOUND_IDLE = "the lane is not in use"
    END = "its thread ends"


_ALIVE = [activity for activity in Activity if activity is not Activity.ENDED]
ACTIVITY: Transitions[Activity, Did] = Transitions(
    "activity",
    Activity.NEW,
    {
        **{(activity, Did.TURN): Activity.WAITING for activity in _ALIVE},
        (Activity.WAITING, Did.ALLOWED): Activity.TAKING_OVER,
        (Activity.TAKING_OVER, Did.TOOK_OVER): Activity.READY,
        (Activity.TAKING_OVER, Did.FOUND_CLOSED): Activity.CLOSED,
        (Activity.TAKING_OVER, Did.FOUND_IDLE): Activity.IDLE,
        (Activity.READY, Did.DEALT): Activity.SENDING,
        (Activity.SENDING, Did.DELIVERED): Activity.READY,
        (Activity.TAKING_OVER, Did.STOPPED): Activity.STOPPED,
        (Activity.READY, Did.STOPPED): Activity.STOPPED,
        (Activity.SENDING, Did.STOPPED): Activity.STOPPED,
        (Activity.TAKING_OVER, Did.FAILED): Activity.BACKING_OFF_TAKEOVER,
        (Activity.READY, Did.FAILED): Activity.BACKING_OFF_READY,
        (Activity.SENDING, Did.FAILED): Activity.BACKING_OFF_SENDING,
        (Activity.STOPPED, Did.FAILED): Activity.STOPPED,
        **{(activity, Did.END): Activity.ENDED for activity in _ALIVE},
    },
)

PHASES: Mapping[Activity, str] = {
    **{activity: activity.value for activity in Activity},
    Activity.BACKING_OFF_TAKEOVER: Activity.TAKING_OVER.value,
    Activity.BACKING_OFF_READY: Activity.READY.value,
    Activity.BACKING_OFF_SENDING: Activity.SENDING.value,
}
"""What people are shown."""


class Decision(Enum):
    NONE = "none"
    AWAITED = "awaited"
    """Of an operator, as far as the lane can tell; also while it is examined again."""


class Judged(Enum):
    STOPPED = "it must not go on, and says why"
    TAKEN_OVER = "both sides agree"


DECISION = Transitions(
    "decision",
    Decision.NONE,
    {
        (Decision.NONE, Judged.STOPPED): Decision.AWAITED,
        (Decision.AWAITED, Judged.STOPPED): Decision.AWAITED,
        (Decision.NONE, Judged.TAKEN_OVER): Decision.NONE,
        (Decision.AWAITED, Judged.TAKEN_OVER): Decision.NONE,
    },
)


class Parts(Enum):
    """Of the worker: what it takes lanes over and sends with."""

    MISSING = "missing"
    """Then it has nothing that is to be settled."""
    MADE = "made"


class PartsEvent(Enum):
    MADE = "all of them are made"


PARTS = Transitions("parts of a worker", Parts.MISSING, {(Parts.MISSING, PartsEvent.MADE): Parts.MADE})


# ---- what follows a takeover that did not succeed, or an order of the rounds


@dataclass(frozen=True, slots=True)
class Doubt:
    """Somebody else has purged a batch of this lane."""


@dataclass(frozen=True, slots=True)
class Retake:
    """Take the lane over again: the lane count is to be changed or was, or a page came from another server."""


@dataclass(frozen=True, slots=True)
class AskHost:
    """Whether the election still names this process; then back off."""


@dataclass(frozen=True, slots=True)
class StayStopped:
    """Send and delete nothing until the lane was examined again, and say why."""

    text: str


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Take the lane over again after this pause."""

    pause_s: float = 0.0
    found: Did | None = None
    """What the takeover has found, if it says where the lane stands."""


def what_follows(
    found: AskElection | Doubt | Retake | Stop | Unreadable | Closed | Idle | None,
) -> AskHost | StayStopped | TryAgain:
    """Total. None: the takeover was not to go on."""
    match found:
        case AskElection() | Doubt():
            return AskHost()
        case Stop() | Unreadable():
            return StayStopped(found.text)
        case Closed():
            return TryAgain(CLOSED_S, Did.FOUND_CLOSED)
        case Idle():
            return TryAgain(_IDLE_S, Did.FOUND_IDLE)
        case Retake() | None:
            return TryAgain()


class Lane:
    """What the worker of a lane does. Owned by its thread; `phase` and `has_ended` are for any."""

    def __init__(self) -> None:
        self._parts, self._activity, self._decision = Region(PARTS), Region(ACTIVITY), Region(DECISION)
        self.stopped_for = ""
        """The question for which an operator's decision is awaited, or was at last."""

    def on(self, event: Did) -> None:
        self._activity.on(event)

    def made(self) -> None:
        self._parts.on(PartsEvent.MADE)

    @property
    def is_made(self) -> bool:
        return self._parts.state is Parts.MADE

    def stopped(self, text: str) -> bool:
        """Whether that is news."""
        is_news = self._decision.state is Decision.NONE or text != self.stopped_for
        self._activity.on(Did.STOPPED)
        self._decision.on(Judged.STOPPED)
        self.stopped_for = text
        return is_news

    def taken_over(self) -> None:
        self._decision.on(Judged.TAKEN_OVER)

    @property
    def awaits_decision(self) -> bool:
        return self._decision.state is Decision.AWAITED

    @property
    def phase(self) -> str:
        return PHASES[self._activity.state]

    @property
    def has_ended(self) -> bool:
        return self._activity.state is Activity.ENDED
