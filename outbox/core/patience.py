"""How long to wait for something that is away, and whether it is away. Pure: time and chance are arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

_DOUBLINGS_MAX = 60  # beyond it a float gains nothing


def pause(min_s: float, max_s: float, before: int, draw: float) -> float:
    """The next pause, after so many. Each is twice the one before, up to `max_s`, and is then shortened by chance, at
    most by half.

    The jitter keeps processes that lost the same server from returning to it in step; the other half keeps a pause
    from being none. `draw` is a random number from 0 to 1.
    """
    return min(max_s, min_s * 2.0 ** min(before, _DOUBLINGS_MAX)) * (0.5 + 0.5 * draw)


class Backoff:
    """Growing pauses. `draw` gives numbers in [0, 1)."""

    def __init__(self, min_s: float, max_s: float, draw: Callable[[], float]) -> None:
        assert 0 < min_s <= max_s
        self._min_s, self._max_s, self._draw = min_s, max_s, draw
        self.failures = 0

    def failed(self) -> float:
        """One more failure; the pause to make before the next attempt."""
        self.failures += 1
        return pause(self._min_s, self._max_s, self.failures - 1, self._draw())

    def worked(self) -> None:
        self.failures = 0


class Hope:
    """That something comes which was never there, as brokers that are still starting. It ends when that is missing for
    too long without a break."""

    def __init__(self) -> None:
        self._since = float("inf")

    def missing(self, now: float, hope_s: float) -> bool:
        """Whether there is none any more; `hope_s`: for how long there is."""
        self._since = min(self._since, now)
        return now - self._since >= hope_s

    def renewed(self) -> None:
        """Something else is in the way."""
        self._since = float("inf")


class CircuitState(StrEnum):
    CLOSED = "closed"
    """It works, as far as is known."""
    OPEN = "open"
    """It is away; nothing is tried before `retry_at`."""
    HALF_OPEN = "half-open"
    """One attempt is under way, which decides."""


@dataclass(frozen=True, slots=True)
class CircuitView:
    """A circuit as it is shown to people."""

    state: CircuitState
    reason: str = ""
    since: float = 0.0
    """When the outage began; times are the monotonic ones that the circuit was given."""
    retry_at: float = 0.0
    failures: int = 0


class Circuit:
    """Whether a server can be used. An outage is told by failures that are nobody's fault; one success ends it."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._view = CircuitView(CircuitState.CLOSED)

    @property
    def view(self) -> CircuitView:
        """Immutable, so that any thread may look at it."""
        return self._view

    @property
    def is_closed(self) -> bool:
        return self._view.state is CircuitState.CLOSED

    def failed(self, now: float, reason: str) -> float:
        """An attempt did not get through; how long to wait before the next one."""
        pause_s = self._backoff.failed()
        since = now if self.is_closed else self._view.since
        self._view = CircuitView(CircuitState.OPEN, reason, since, now + pause_s, self._backoff.failures)
        return pause_s

    def may_try(self, now: float) -> bool:
        """Whether an attempt may begin; while the circuit is open, True is the leave for exactly one."""
        view = self._view
        if view.state is CircuitState.OPEN and now >= view.retry_at:
            self._view = CircuitView(CircuitState.HALF_OPEN, view.reason, view.since, view.retry_at, view.failures)
            return True
        return view.state is CircuitState.CLOSED

    def worked(self) -> None:
        """Full speed again, at once: pauses were for a server that is away, and it is not."""
        self._backoff.worked()
        if not self.is_closed:
            self._view = CircuitView(CircuitState.CLOSED)
