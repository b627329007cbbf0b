"""Which blocks of the table the sweep looks at next, how many at a time, and when. Pure.

The sweep walks over the table in slices, for a hundredth of the time. After a slice that took long, or failed, the next
ones are smaller; after one that took little, larger. A pass ends with the last block, and the next one begins when its
time has come.
"""

from __future__ import annotations

from enum import Enum

from outbox.core.region import Region, Transitions

_SHARE = 100  # a slice may take so small a part of the time
_PAUSE_S = 5.0  # between slices at the least: an idle process asks PostgreSQL little
_SLICE_S = 0.6  # a slice that takes longer makes the next ones smaller, and its pause no longer
_BLOCKS_FIRST, _BLOCKS_MIN, _BLOCKS_MAX = 256, 16, 4096
_ROWS_MAX = 20_000  # of a slice; more are those of held keys


class SweepState(Enum):
    PAUSING = "pausing"
    """What was found can be taken."""
    LOOKING = "looking"
    """At a slice. Until it ends, everything belongs to the thread that looks."""


class Swept(Enum):
    BEGUN = "a slice is asked for"
    ENDED = "its answer is there, or it has failed"


SWEEP = Transitions(
    "sweep",
    SweepState.PAUSING,
    {
        (SweepState.PAUSING, Swept.BEGUN): SweepState.LOOKING,
        (SweepState.LOOKING, Swept.ENDED): SweepState.PAUSING,
    },
)


class Slices:
    def __init__(self, interval_s: float, failure_s: float, now: float) -> None:
        """A pass begins so long after the one before at the least. `failure_s`: the pause after a failure."""
        self._interval_s, self._failure_s = interval_s, failure_s
        self._region = Region(SWEEP)
        self.block, self.blocks = 0, _BLOCKS_FIRST
        """Where the next slice begins, and how many blocks it has."""
        self._begun_at, self._next_at = now, now + interval_s
        self.passes = 0

    @property
    def is_under_way(self) -> bool:
        return self._region.state is SweepState.LOOKING

    def is_due(self, now: float) -> bool:
        return not self.is_under_way and now >= self._next_at

    def begin(self, now: float) -> None:
        if not self.block:
            self._begun_at = now
        self._region.on(Swept.BEGUN)

    def failed(self, now: float) -> None:
        self._shrink()
        self._next_at = now + self._failure_s
        self._region.on(Swept.ENDED)

    def looked(self, now: float, rows: int, size: int, took_s: float) -> None:
        """So many rows were found; the table has `size` blocks."""
        self.block += self.blocks
        # The answer may have come late, or the process was stopped meanwhile: for how long, nothing limits.
        self._next_at = now + max(min(_PAUSE_S, self._interval_s), _SHARE * min(took_s, _SLICE_S))
        if self.block >= size:
            self.block = 0
            self.passes += 1
            self._next_at = max(self._next_at, self._begun_at + self._interval_s)
        if rows > _ROWS_MAX or took_s > _SLICE_S:
            self._shrink()
        elif rows < _ROWS_MAX // 4 and took_s < _SLICE_S / 4:
            self.blocks = min(_BLOCKS_MAX, 4 * self.blocks)
        self._region.on(Swept.ENDED)

    def _shrink(self) -> None:
        self.blocks = max(_BLOCKS_MIN, self.blocks // 4)
