"""When to look again at what operators hold: once a second, and before the first read for a lane that has joined."""

from __future__ import annotations

from enum import Enum

from outbox.core.region import Region, Transitions

PAUSE_S = 1.0  # until an operator's hold is noticed
_SHARE = 10  # of the time that looking takes: so much is left for reading


class Look(Enum):
    STALE = "stale"
    """The holds of some lane are not known."""
    ASKED = "asked"
    """They are being read."""
    FRESH = "fresh"
    """They are known, and read again when the pause is over."""


class Looked(Enum):
    ASKED = "holds are asked for"
    LOADED = "holds are known"
    FAILED = "holds could not be had"
    JOINED = "a lane has joined, whose holds may not be known"


LOOK = Transitions(
    "holds",
    Look.STALE,
    {
        (Look.STALE, Looked.ASKED): Look.ASKED,
        (Look.FRESH, Looked.ASKED): Look.ASKED,
        (Look.ASKED, Looked.LOADED): Look.FRESH,
        (Look.ASKED, Looked.FAILED): Look.STALE,
        **{(state, Looked.JOINED): Look.STALE for state in Look},
        # A lane has joined meanwhile.
        (Look.STALE, Looked.LOADED): Look.STALE,
        (Look.STALE, Looked.FAILED): Look.STALE,
    },
)


class HoldsLook:
    def __init__(self) -> None:
        self._region = Region(LOOK)
        self._due_at = 0.0

    def is_due(self, now: float) -> bool:
        return self._region.state is not Look.FRESH or now >= self._due_at

    def joined(self) -> None:
        self._region.on(Looked.JOINED)

    def asked(self) -> None:
        self._region.on(Looked.ASKED)

    def failed(self) -> None:
        self._region.on(Looked.FAILED)

    def loaded(self, asked_at: float, now: float) -> None:
        """The pause begins when they are there. If reading them took long, the pause is ten times as long: however
        many holds there are, pages are read most of the time."""
        self._region.on(Looked.LOADED)
        self._due_at = now + max(PAUSE_S, _SHARE * (now - asked_at))
