"""How the worker of a lane ends, as its host asks. Pure.

The host sets the ending, and the lane's thread reads it again during each wait. `finish` stores the deadline before the
state.
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
