"""Where the worker of one lane stands. Pure.

How it ends is asked for by the host, in one thread: that thread owns the region, and the lane's thread only reads it.
It may be in the middle of a wait, so it looks again and again. The deadline is there before the state that needs it.
"""

from __future__ import annotations

from enum import Enum

from outbox.core.region import Region, Table


class Ending(Enum):
    NO = "no"
    FINISHING = "finishing"
    """What is in hand is finished by a deadline, and the host awaits an answer."""
    ABANDONED = "abandoned"
    """Everything is dropped at once."""
    CUT_SHORT = "cut short"
    """Dropped at once, and the host still awaits an answer."""


class Asked(Enum):
    TO_FINISH = "the host asks it to finish"
    TO_DROP = "the host abandons it"


ENDING = Table(
    "ending",
    Ending.NO,
    {
        (Ending.NO, Asked.TO_FINISH): Ending.FINISHING,
        (Ending.NO, Asked.TO_DROP): Ending.ABANDONED,
        (Ending.FINISHING, Asked.TO_FINISH): Ending.FINISHING,
        (Ending.FINISHING, Asked.TO_DROP): Ending.CUT_SHORT,
        (Ending.ABANDONED, Asked.TO_FINISH): Ending.CUT_SHORT,
        (Ending.ABANDONED, Asked.TO_DROP): Ending.ABANDONED,
        (Ending.CUT_SHORT, Asked.TO_FINISH): Ending.CUT_SHORT,
        (Ending.CUT_SHORT, Asked.TO_DROP): Ending.CUT_SHORT,
    },
)


class EndOfLane:
    """How a lane's worker ends, and by when."""

    def __init__(self) -> None:
        self._region = Region(ENDING)
        self._deadline = float("inf")

    # ---- in the host's thread

    def finish(self, deadline: float) -> None:
        self._deadline = deadline
        self._region.on(Asked.TO_FINISH)

    def abandon(self) -> None:
        self._region.on(Asked.TO_DROP)

    # ---- in any thread

    @property
    def is_asked_for(self) -> bool:
        return self._region.state is not Ending.NO

    @property
    def is_awaited(self) -> bool:
        """The host is to be told when it has ended."""
        return self._region.state in (Ending.FINISHING, Ending.CUT_SHORT)

    def has_come(self, now: float) -> bool:
        """What is in hand has no time left."""
        state = self._region.state
        return state in (Ending.ABANDONED, Ending.CUT_SHORT) or (state is Ending.FINISHING and now > self._deadline)

    def leaves_time(self, now: float) -> bool:
        """To settle what is in hand; an abandoned lane leaves that to its successor."""
        return self._region.state is Ending.FINISHING and now < self._deadline
