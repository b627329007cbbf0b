"""What a lane tells about itself: what it has in flight, when an outage began and ended."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from outbox.core.at_least_once import values as values
from outbox.core.at_least_once.scoreboard import Scoreboard
from outbox.core.patience import CircuitState, CircuitView
from outbox.runtime import Runtime
from outbox.runtime.threads import THREADS

logger = logging.getLogger("outbox.harvest")


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    lane: int
    leader_id: UUID
    phase: str
    in_flight: int
    in_flight_keys: tuple[values.KeyName, ...]
    delivered: int
    held: int
    """Keys, records and topics that are held back, for whatever reason."""
    held_keys: int
    """Of these, what a record at fault holds back, and no operator."""
    board: values.Statistics
    circuit: CircuitView


class Troubles:
    """Logs the beginning and the end of an outage, once each."""

    def __init__(self, lane: int, runtime: Runtime = THREADS) -> None:
        self._lane, self._runtime = lane, runtime
        self._since: Mapping[str, float] = {}
        self._last: dict[str, float] = {}

    @property
    def circuit(self) -> CircuitView:
        """Open while one of the outages lasts. For any thread."""
        since = self._since
        if not since:
            return CircuitView(CircuitState.CLOSED)
        return CircuitView(CircuitState.OPEN, ", ".join(since), min(since.values()))

    def seen(self, what: str, error: str) -> None:
        self._last[what] = self._runtime.monotonic()
        if what not in self._since:
            self._since = {**self._since, what: self._runtime.monotonic()}
            logger.warning("%s_failed lane=%d error=%r", what, self._lane, error)

    def over(self, what: str, *, quiet_s: float = 0.0) -> None:
        """It worked, and did not fail for `quiet_s`: where a part works, a part that does not is no end and no news."""
        if self._since and what in self._since and self._runtime.monotonic() >= self._last[what] + quiet_s:
            lasted_s = self._runtime.monotonic() - self._since[what]
            self._since = {key: value for key, value in self._since.items() if key != what}
            logger.info("%s_works_again lane=%d after_s=%.3f", what, self._lane, lasted_s)


def keys_in_flight(board: Scoreboard) -> tuple[values.KeyName, ...]:
    for _ in range(5):
        try:
            return tuple(board.in_flight_keys())
        except (KeyError, RuntimeError):  # its owner changed it meanwhile
            continue
    return ()
