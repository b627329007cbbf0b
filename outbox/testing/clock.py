"""The time of a test: it does not change until the test moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class Clock:
    """Starts at `start`, or at the present time."""

    def __init__(self, start: datetime | None = None) -> None:
        self._start = start or datetime.now(UTC)
        self.elapsed_s = 0.0

    @property
    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.elapsed_s)

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"advance({seconds!r}): time does not go back. Pass 0 or more seconds.")
        self.elapsed_s += seconds
