"""What the daemon gives the worker of one lane for one leadership. When that has ended, the worker is not heard."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from outbox.core.at_least_once.values import DeadlineExceeded, NotPurged, RecordHeld, RemarkRequested
from outbox.core.contract import BatchDelivered, LaneStopped, LaneWorker, MeterRead, UncleanRelease
from outbox.core.election.neli import LeaderAcquired, LeaderRevoked
from outbox.core.ending import Leadership
from outbox.harvest.metrics import Measurements
from outbox.runtime import Runtime
from outbox.runtime.threads import THREADS
from outbox.service.receivers import Events

if TYPE_CHECKING:
    from outbox.election.member import Member

IDS_LOGGED_MAX = 20


class Host:
    """A `LaneHost`."""

    worker: LaneWorker

    def __init__(
        self,
        acquired: LeaderAcquired,
        member: Member,
        events: Events,
        fail: Callable[[BaseException], None],
        logger: logging.Logger,
        measurements: Measurements | None = None,
        unclean_release: Callable[[str], None] = lambda reason: None,
        *,
        runtime: Runtime = THREADS,
    ) -> None:
        """`unclean_release` is also called for a lane that was given up: its worker's end tells of the process."""
        self._measurements = measurements or Measurements()
        self.lane = acquired.lane
        self.leader_id: UUID = acquired.leader_id
        self._leadership = Leadership()
        self._mutex = runtime.lock("lane's host")
        self._member = member
        self._events = events
        self._fail, self._unclean_release = fail, unclean_release
        self._logger = logger

    def take(self, worker: LaneWorker) -> None:
        self.worker = worker

    def refreshed(self, leader_id: UUID) -> None:
        self.leader_id = leader_id

    @property
    def is_done(self) -> bool:
        return self._leadership.is_done

    @property
    def is_announced(self) -> bool:
        """The end was, to the receivers."""
        return self._leadership.is_announced

    def detach(self) -> None:
        """The lane may belong to another leadership from now on."""
        with self._mutex:
            self._leadership.detach()

    def may_start(self, lane: int) -> bool:
        return self._leadership.is_attached and self._member.may_start(lane)

    def may_send(self, lane: int) -> bool:
        return self._leadership.is_attached and self._member.may_send(lane)

    def lanes_owned(self) -> int:
        return max(1, len(self._member.owned))

    def refresh(self, lane: int) -> None:
        if self._leadership.is_attached:
            self._member.refresh(lane)

    def doubt(self, lane: int) -> None:
        if self._leadership.is_attached:
            self._member.doubt(lane)

    def step_down(self, lane: int) -> None:
        if self._leadership.is_attached:
            self._member.step_down(lane)

    def partitions_added(self) -> None:
        if self._leadership.is_attached:
            self._member.partitions_added()

    def finished(self, lane: int) -> None:
        """The lane is given back when the receivers of leader_revoked have returned."""
        with self._mutex:
            if not self._leadership.finished():
                return
        self._logger.info("leader_revoked lane=%d leader_id=%s", self.lane, self.leader_id)
        self._events.put(lane, LeaderRevoked(lane, self.leader_id), self._release)

    def _release(self) -> None:
        if self._leadership.is_attached:  # else these receivers took so long that the lane went without them
            self._member.release(self.lane)

    def emit(self, event: object) -> None:
        if isinstance(event, BatchDelivered):
            self._measurements.delivered(event)
            if event.traced:
                self._events.put(self.lane, event)
            return
        if isinstance(event, UncleanRelease):
            self._unclean_release(f"Lane {event.lane}: {event.reason}")
            return
        if self.is_done:
            return
        if not isinstance(event, LaneStopped):  # its worker has said so
            self._log(event)
        if isinstance(event, RecordHeld):
            self._measurements.rejected()
        if isinstance(event, (MeterRead, RecordHeld, LaneStopped)):
            self._events.put(self.lane, event)

    def fatal(self, error: BaseException) -> None:
        if self._leadership.is_attached:
            self._fail(error)

    def _log(self, event: object) -> None:
        lane, log = self.lane, self._logger
        if isinstance(event, MeterRead):
            log.info(
                "meter_read lane=%d delivered=%d rate=%.0f average_rate=%.0f in_flight=%d",
                lane,
                event.delivered,
                event.rate,
                event.average_rate,
                event.in_flight,
            )
        elif isinstance(event, RecordHeld):
            log.warning(
                "record_held lane=%d id=%d key=%r attempts=%d error=%r",
                lane,
                event.id,
                event.name,
                event.attempts,
                event.error,
            )
        elif isinstance(event, NotPurged):
            log.warning("not_purged lane=%d count=%d ids=%s", lane, len(event.ids), list(event.ids[:IDS_LOGGED_MAX]))
        elif isinstance(event, RemarkRequested):
            log.warning("remark_requested lane=%d reason=%r", lane, event.reason)
        elif isinstance(event, DeadlineExceeded):
            log.warning(
                "deadline_exceeded lane=%d kind=%s key=%r waited_s=%.1f", lane, event.kind, event.name, event.waited_s
            )
        else:
            log.info("lane_event lane=%d event=%r", lane, event)
