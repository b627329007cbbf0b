"""When a delivery that failed is attempted again. Pure: chance and the wall clock are arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

STANDARD_S = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Pauses of the specification Standard Webhooks: ten attempts within 75 hours and 35 minutes."""
RETRY_AFTER_MAX_S = 3_600.0
"""A receiver may ask for a longer pause; it gets this one."""
FULL_JITTER = 1.0
SOME_JITTER = 0.2
_DOUBLINGS_MAX = 60  # beyond it a float gains nothing


@dataclass(frozen=True, slots=True)
class Schedule:
    """The pauses between attempts, and so the highest number of attempts."""

    pauses_s: tuple[float, ...] = STANDARD_S
    jitter: float = SOME_JITTER
    """How much of a pause chance may take away: deliveries that failed together are not attempted together."""

    def __post_init__(self) -> None:
        assert self.pauses_s
        assert min(self.pauses_s) >= 0
        assert 0 <= self.jitter <= FULL_JITTER

    @property
    def attempts(self) -> int:
        return len(self.pauses_s) + 1

    def is_last(self, attempts: int) -> bool:
        """Whether one more failure is the last, after `attempts` that were charged."""
        return attempts + 1 >= self.attempts

    def pause_s(self, attempts: int, draw: float, retry_after_s: float | None = None) -> float:
        """Before the next attempt, after `attempts` that were charged and failed. `draw` is from 0 to less than 1.

        Without a charged attempt it is the pause after the first one; an attempt too many gets the longest pause.
        """
        longest_s = self.pauses_s[min(max(0, attempts - 1), len(self.pauses_s) - 1)]
        return max(longest_s * (1.0 - self.jitter * draw), limited(retry_after_s))


def exponential(attempts: int, base_s: float, factor: float, cap_s: float, jitter: float = FULL_JITTER) -> Schedule:
    """Each pause is `factor` times the one before, at most `cap_s`."""
    return Schedule(_pauses(attempts, lambda n: min(cap_s, base_s * factor ** min(n, _DOUBLINGS_MAX))), jitter)


def fixed(attempts: int, pause_s: float, jitter: float = SOME_JITTER) -> Schedule:
    return Schedule(_pauses(attempts, lambda n: pause_s), jitter)


def _pauses(attempts: int, pause: Callable[[int], float]) -> tuple[float, ...]:
    assert attempts >= 2, "a delivery that is attempted once has no schedule"
    return tuple(pause(n) for n in range(attempts - 1))


def limited(retry_after_s: float | None) -> float:
    return min(RETRY_AFTER_MAX_S, max(0.0, retry_after_s or 0.0))


def retry_after(header: str, now: datetime) -> float | None:
    """The seconds that a header Retry-After asks for: a number, or a date of HTTP. None: it says nothing usable."""
    text = header.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:12]), RETRY_AFTER_MAX_S)
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return min(max(0.0, (until - now).total_seconds()), RETRY_AFTER_MAX_S)
