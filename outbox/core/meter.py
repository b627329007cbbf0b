"""What a lane reads of itself now and then."""

from __future__ import annotations

from uuid import UUID

from outbox.core.contract import MeterRead


class Meter:
    """How fast records are delivered. Silent while nothing is."""

    def __init__(self, lane: int, interval_s: float, now: float) -> None:
        self._lane, self._interval_s = lane, interval_s
        self._start = self._last = now
        self._delivered = 0

    def is_due(self, now: float) -> bool:
        return now - self._last >= self._interval_s

    def read(self, delivered: int, leader_id: UUID, in_flight: int, now: float) -> MeterRead | None:
        interval_s, fresh = now - self._last, delivered - self._delivered
        if interval_s <= 0:
            return None
        self._last, self._delivered = now, delivered
        if not fresh:
            return None
        average = delivered / (now - self._start)
        return MeterRead(self._lane, leader_id, delivered, interval_s, fresh / interval_s, average, in_flight)
