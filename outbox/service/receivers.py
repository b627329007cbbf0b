"""Receivers of signals run here: one after another, in one thread, so that none of them can delay the harvesting.

Events of the leadership are kept; readings and held records are dropped when more than a bounded number waits, and
when their lane ends.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.dispatch import Signal

from outbox import signals
from outbox.core.at_least_once.values import RecordHeld
from outbox.core.contract import BatchDelivered, LaneStopped, MeterRead
from outbox.core.election.neli import LeaderAcquired, LeaderFenced, LeaderRefreshed, LeaderRevoked
from outbox.runtime import Runtime, Thread
from outbox.runtime.threads import THREADS

logger = logging.getLogger("outbox.harvest")

LEADERSHIP = (LeaderAcquired, LeaderRefreshed, LeaderRevoked, LeaderFenced)
LEADERSHIP_MAX = 1000
OTHERS_MAX = 200


@dataclass(frozen=True, slots=True)
class Waiting:
    lane: int
    event: object
    then: Callable[[], None] | None


class Events:
    def __init__(
        self, sender: Any, harvester: Any, logger: logging.Logger = logger, runtime: Runtime = THREADS
    ) -> None:
        self._runtime = runtime
        self._sender = sender
        self._harvester = harvester
        self._logger = logger
        self._changed = runtime.condition("receivers")
        self._waiting: deque[Waiting] = deque()
        self._closing = False
        self._dropping = False
        self._thread: Thread | None = None
        self.dropped_total = 0

    def start(self) -> None:
        self._thread = self._runtime.thread(self._run, "outbox-events")
        self._thread.start()

    def put(self, lane: int, event: object, then: Callable[[], None] | None = None) -> None:
        """Send the event's signal after those before it, then call `then`. Never blocks."""
        with self._changed:
            if isinstance(event, (LeaderRevoked, LeaderFenced)):
                self._forget_others(lane)
            if self._closing or not self._has_room(event):
                self._drop(event)
            else:
                self._dropping = self._dropping and len(self._waiting) > OTHERS_MAX // 2
                self._waiting.append(Waiting(lane, event, then))
                self._changed.notify_all()
                return
        if then:
            then()

    def close(self, timeout_s: float) -> bool:
        """Let the receivers of what waits run, as far as the time allows."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._logger.warning("receivers_left_behind waiting=%d", len(self._waiting))
        return not self._thread.is_alive()

    def _forget_others(self, lane: int) -> None:
        """A reading of a leadership that has ended is no news, and must not delay the rebalance."""
        self._waiting = deque(w for w in self._waiting if w.lane != lane or isinstance(w.event, LEADERSHIP))

    def _has_room(self, event: object) -> bool:
        leadership = sum(isinstance(w.event, LEADERSHIP) for w in self._waiting)
        if isinstance(event, LEADERSHIP):
            return leadership < LEADERSHIP_MAX
        return len(self._waiting) - leadership < OTHERS_MAX

    def _drop(self, event: object) -> None:
        self.dropped_total += 1
        if not self._dropping and not self._closing:
            self._dropping = True
            self._logger.warning("events_dropped first=%s: a receiver of a signal is too slow", type(event).__name__)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._closing:
                        return
                    self._changed.wait()
                found = self._waiting.popleft()
            try:
                self._send(found)
            except BaseException:
                self._logger.exception("event_failed event=%s", found.event)
            finally:
                if found.then:
                    found.then()

    def _send(self, waiting: Waiting) -> None:
        signal, arguments = translate(waiting.event)
        if signal is None:
            return
        receivers = signal.send_robust(sender=self._sender, harvester=self._harvester, lane=waiting.lane, **arguments)
        for receiver, answer in receivers:
            if isinstance(answer, Exception):
                name = getattr(receiver, "__qualname__", repr(receiver))
                self._logger.error(
                    "receiver_failed event=%s receiver=%s error=%r", type(waiting.event).__name__, name, answer
                )


def translate(event: object) -> tuple[Signal | None, Mapping[str, Any]]:
    """The signal of an event and its arguments; None for what is only logged."""
    if isinstance(event, LeaderAcquired):
        return signals.leader_acquired, {"leader_id": event.leader_id, "epoch": event.epoch}
    if isinstance(event, LeaderRefreshed):
        return signals.leader_refreshed, {"leader_id": event.leader_id, "epoch": event.epoch}
    if isinstance(event, LeaderRevoked):
        return signals.leader_revoked, {"leader_id": event.leader_id}
    if isinstance(event, LeaderFenced):
        return signals.leader_fenced, {"leader_id": event.leader_id, "reason": event.reason}
    if isinstance(event, MeterRead):
        names = ("leader_id", "delivered", "interval_s", "rate", "average_rate", "in_flight")
        return signals.meter_read, {name: getattr(event, name) for name in names}
    if isinstance(event, BatchDelivered):
        names = ("leader_id", "batch", "count", "began_ns", "committed_ns", "traced")
        return signals.batch_delivered, {name: getattr(event, name) for name in names}
    if isinstance(event, RecordHeld):
        topic, key = event.name if isinstance(event.name, tuple) else (None, None)
        return signals.record_held, {
            "record_id": event.id,
            "topic": topic,
            "key": key,
            "attempts": event.attempts,
            "error": event.error,
        }
    if isinstance(event, LaneStopped):
        return signals.lane_stopped, {"reason": event.text}
    return None, {}
