"""The lease of a process on its table: since when it holds, when it is to be repeated, and until when to rely on it.

A lease that was not repeated in time may have gone to another mode of delivery: nothing is marked or committed then.
"""

from __future__ import annotations

from enum import Enum

from outbox.core.region import Region, Transitions

BEAT_S = 2.0
_TRUST = 0.75  # of the time after which others may take it; the rest is for what runs late


class Lease(Enum):
    NOT_KEPT = "not kept"
    """Nobody repeats it: it was not asked for yet, or is given back."""
    KEPT = "kept"


class LeaseEvent(Enum):
    PREPARED = "everything is ready for harvesting"
    RELEASED = "the last lane has ended cleanly"


LEASE = Transitions(
    "lease",
    Lease.NOT_KEPT,
    {
        (Lease.NOT_KEPT, LeaseEvent.PREPARED): Lease.KEPT,
        (Lease.KEPT, LeaseEvent.PREPARED): Lease.KEPT,
        (Lease.KEPT, LeaseEvent.RELEASED): Lease.NOT_KEPT,
        (Lease.NOT_KEPT, LeaseEvent.RELEASED): Lease.NOT_KEPT,
    },
)


class Times:
    """Of one process's lease; each of its threads may have taken it last."""

    def __init__(self, patience_s: float, beat_s: float) -> None:
        """`patience_s`: after which others take a lease that was not repeated."""
        self.beat_s = min(beat_s, patience_s / 3)
        self._trusted_s = _TRUST * patience_s
        self._trusted_until = self._due_at = float("-inf")
        self._region = Region(LEASE)

    @property
    def is_kept(self) -> bool:
        return self._region.state is Lease.KEPT

    def prepared(self) -> None:
        self._region.on(LeaseEvent.PREPARED)

    def released(self) -> None:
        """No heartbeat may take it again."""
        self._region.on(LeaseEvent.RELEASED)

    def taken(self, asked_at: float, *, exists: bool = True, shows_lanes: bool = False) -> None:
        """Trust counts from when the lease was asked for. If the table has no state row (`exists` is false),
        trust has no end, and the next heartbeat looks again. `shows_lanes`: this also counts as a heartbeat."""
        self._trusted_until = asked_at + self._trusted_s if exists else float("inf")
        if shows_lanes:
            self._due_at = asked_at + self.beat_s

    def is_trusted(self, now: float) -> bool:
        return now < self._trusted_until

    def is_lost(self, now: float) -> bool:
        """It was had, and could not be repeated in time."""
        return self.is_kept and not self.is_trusted(now)

    def is_due(self, now: float) -> bool:
        """Whether to repeat it now."""
        return self.is_kept and now >= self._due_at

    def sent(self, now: float) -> None:
        """Nobody else is to repeat it for a while, however this heartbeat ends."""
        self._due_at = now + self.beat_s
