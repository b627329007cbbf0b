"""How the worker of a lane ends, as its host asks, and how long the host listens to it. Pure.

The host sets the ending, and the lane's thread reads it again during each wait. `finish` stores the deadline before the
state. A leadership changes under the lock of the lane's host, and any thread reads it.
"""

from __future__ import annotations

from enum import Enum

from outbox.core.region import Region, Transitions


class Answer(Enum):
    NOT_AWAITED = "not awaited"
    AWAITED = "awaited"
    """What is in flight is finished by a deadline, and the host is to be told when the lane has ended."""


class InHand(Enum):
    KEPT = "kept"
    DROPPED = "dropped"
    """At once: the successor settles it."""


class Asked(Enum):
    TO_FINISH = "the host asks it to finish"
    TO_DROP = "the host abandons it"


ANSWER = Transitions(
    "answer",
    Answer.NOT_AWAITED,
    {
        (Answer.NOT_AWAITED, Asked.TO_FINISH): Answer.AWAITED,
        (Answer.AWAITED, Asked.TO_FINISH): Answer.AWAITED,
    },
)
IN_HAND = Transitions(
    "in flight",
    InHand.KEPT,
    {
        (InHand.KEPT, Asked.TO_DROP): InHand.DROPPED,
        (InHand.DROPPED, Asked.TO_DROP): InHand.DROPPED,
    },
)


class EndOfLane:
    """How a lane's worker ends, and by when. Two threads of the host may ask at the same time, one to finish and one to
    drop: each request has a region of its own and lasts, so neither is lost."""

    def __init__(self) -> None:
        self._answer, self._in_hand = Region(ANSWER), Region(IN_HAND)
        self._deadline = float("inf")

    # ---- by the host

    def finish(self, deadline: float) -> None:
        self._deadline = deadline
        self._answer.on(Asked.TO_FINISH)

    def abandon(self) -> None:
        self._in_hand.on(Asked.TO_DROP)

    # ---- in any thread

    @property
    def is_asked_for(self) -> bool:
        return self.is_awaited or self.is_dropped

    @property
    def is_awaited(self) -> bool:
        """The host is to be told when it has ended."""
        return self._answer.state is Answer.AWAITED

    @property
    def is_clean(self) -> bool:
        """It is to settle what is in flight, and leave nothing behind."""
        return self.is_awaited and not self.is_dropped

    @property
    def is_dropped(self) -> bool:
        return self._in_hand.state is InHand.DROPPED

    def has_come(self, now: float) -> bool:
        """What is in flight has no time left."""
        return self.is_dropped or (self.is_awaited and now > self._deadline)

    def leaves_time(self, now: float) -> bool:
        """To settle what is in flight; an abandoned lane leaves that to its successor."""
        return self.is_awaited and not self.is_dropped and now < self._deadline


# ---- the leadership of a lane, as its host sees it


class Heard(Enum):
    LEADING = "leading"
    """What the worker says counts, and is announced."""
    FINISHED = "finished"
    """The worker has finished and receivers were told so. The lane is given back when they have returned."""
    DETACHED = "detached"
    """The lane may belong to another leadership: the worker is not heard any more."""
    OVER = "over"
    """So too, after the worker had finished."""


class HostEvent(Enum):
    FINISHED = "the worker has finished"
    DETACHED = "the election has taken the lane away, or the process ends"


LEADERSHIP = Transitions(
    "leadership of a lane",
    Heard.LEADING,
    {
        (Heard.LEADING, HostEvent.FINISHED): Heard.FINISHED,
        (Heard.LEADING, HostEvent.DETACHED): Heard.DETACHED,
        (Heard.FINISHED, HostEvent.FINISHED): Heard.FINISHED,
        (Heard.FINISHED, HostEvent.DETACHED): Heard.OVER,
        **{(state, event): state for state in (Heard.DETACHED, Heard.OVER) for event in HostEvent},
    },
)


class Leadership:
    def __init__(self) -> None:
        self._region = Region(LEADERSHIP)

    def finished(self) -> bool:
        """Whether that is to be announced: it is news, and the lane is still this leadership's."""
        is_news = self._region.state is Heard.LEADING
        self._region.on(HostEvent.FINISHED)
        return is_news

    def detach(self) -> None:
        self._region.on(HostEvent.DETACHED)

    @property
    def is_attached(self) -> bool:
        """What the worker asks of the election is passed on."""
        return self._region.state in (Heard.LEADING, Heard.FINISHED)

    @property
    def is_announced(self) -> bool:
        """Receivers know that the worker has finished."""
        return self._region.state in (Heard.FINISHED, Heard.OVER)

    @property
    def is_done(self) -> bool:
        return self._region.state is not Heard.LEADING
