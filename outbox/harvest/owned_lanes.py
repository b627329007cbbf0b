"""The lanes that a process owns: gives each a worker and a host, and ends them, as the election says.

What the election says arrives under its lock, so nothing here may block: workers have threads of their own, receivers
of signals too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

from outbox.conf import Conf
from outbox.core.contract import LaneWorker, WorkerFactory
from outbox.core.election import neli
from outbox.core.election.neli import (
    AbandonBatch,
    FinishBatch,
    LeaderAcquired,
    LeaderFenced,
    LeaderRefreshed,
    LeaderRevoked,
)
from outbox.election.member import Member
from outbox.failpoints import failpoint
from outbox.harvest.lane_host import Host
from outbox.harvest.metrics import Measurements
from outbox.runtime import Runtime
from outbox.runtime.threads import THREADS
from outbox.service.receivers import Events

RECEIVERS_SHARE = 0.1  # of the time to give back a lane: what receivers of leader_revoked have at the least


class OwnedLanes:
    def __init__(
        self,
        conf: Conf,
        factory: WorkerFactory,
        events: Events,
        measurements: Measurements,
        fail: Callable[[BaseException], None],
        unclean_release: Callable[[str], None],
        *,
        name: str,
        logger: logging.Logger,
        runtime: Runtime = THREADS,
    ) -> None:
        """`name`: of the member, as the log has it."""
        self._conf, self._factory, self._events, self._measurements = conf, factory, events, measurements
        self._fail, self._unclean_release = fail, unclean_release
        self._name, self._logger, self._runtime = name, logger, runtime
        self._member: Member | None = None
        self._hosts: dict[int, Host] = {}  # of the lanes in work
        self._ending: list[LaneWorker] = []

    def follow(self, member: Member) -> None:
        """From now on it is this member that is heard."""
        self._member = member

    # ---- for any thread

    @property
    def leader_ids(self) -> dict[int, UUID]:
        return {lane: host.leader_id for lane, host in dict(self._hosts).items() if not host.is_done}

    def statistics(self) -> dict[int, Any]:
        return {lane: host.worker.statistics() for lane, host in dict(self._hosts).items()}

    # ---- for the thread that supervises

    def join_workers(self, timeout_s: float) -> None:
        deadline = self._runtime.monotonic() + timeout_s
        for lane in list(self._hosts):
            self._drop(lane)
        late = [worker for worker in self._ending if not worker.join(max(0.0, deadline - self._runtime.monotonic()))]
        if late:
            self._logger.warning("workers_left_behind count=%d", len(late))

    def forget_ended(self) -> None:
        for worker in [worker for worker in self._ending if worker.join(0.0)]:
            self._ending.remove(worker)  # in place: the election's thread adds others meanwhile

    # ---- what the election says; called under its lock

    def hear(self, effect: neli.Effect) -> None:
        try:
            if isinstance(effect, LeaderAcquired):
                self._acquire(effect)
            elif isinstance(effect, LeaderRefreshed):
                self._refresh(effect)
            elif isinstance(effect, FinishBatch):
                self._finish(effect)
            elif isinstance(effect, LeaderFenced):
                self._fence(effect)
            elif isinstance(effect, LeaderRevoked):
                self._revoke(effect)
            elif isinstance(effect, AbandonBatch):
                self._abandon(effect)
        except Exception as error:
            self._fail(error)

    def _acquire(self, event: LeaderAcquired) -> None:
        assert self._member is not None
        self._log("leader_acquired lane=%d leader_id=%s epoch=%d", event.lane, event.leader_id, event.epoch)
        host = Host(
            event,
            self._member,
            self._events,
            self._fail,
            self._logger,
            self._measurements,
            self._unclean_release,
            runtime=self._runtime,
        )
        host.take(self._factory(self._conf, event.lane, event.leader_id, event.epoch, host))
        self._measurements.acquired(event.lane, host.worker)
        self._hosts[event.lane] = host
        self._events.put(event.lane, event)
        failpoint("acquired")
        host.worker.start()

    def _refresh(self, event: LeaderRefreshed) -> None:
        self._log("leader_refreshed lane=%d leader_id=%s", event.lane, event.leader_id)
        host = self._hosts[event.lane]
        host.refreshed(event.leader_id)
        self._events.put(event.lane, event)
        host.worker.refreshed(event.leader_id)

    def _finish(self, effect: FinishBatch) -> None:
        host = self._hosts.get(effect.lane)
        if host is None:  # its worker could not be made
            assert self._member is not None
            self._member.release(effect.lane)
        else:
            host.worker.finish(effect.deadline - RECEIVERS_SHARE * self._conf.election.revoke_timeout_s)

    def _fence(self, event: LeaderFenced) -> None:
        host = self._hosts.get(event.lane)
        self._drop(event.lane)
        if host is not None and host.is_announced:
            return  # it had finished: its receivers know
        self._measurements.fenced(event)
        lane, leader_id, reason = event.lane, event.leader_id, event.reason
        self._logger.warning("leader_fenced lane=%d leader_id=%s reason=%s", lane, leader_id, reason)
        self._events.put(event.lane, event)

    def _abandon(self, effect: AbandonBatch) -> None:
        """LeaderRevoked follows."""
        host = self._hosts.get(effect.lane)
        if host is None or host.is_announced:
            return  # only receivers are late
        self._logger.warning(
            "batch_abandoned lane=%d leader_id=%s: not finished in time", effect.lane, effect.leader_id
        )
        host.detach()
        host.worker.abandon()

    def _revoke(self, event: LeaderRevoked) -> None:
        host = self._hosts.get(event.lane)
        self._drop(event.lane)
        if host is not None and host.is_announced:
            return
        self._log("leader_revoked lane=%d leader_id=%s", event.lane, event.leader_id)
        self._events.put(event.lane, event)

    def _drop(self, lane: int) -> None:
        host = self._hosts.pop(lane, None)
        if host is not None:
            host.detach()
            if not host.is_announced:  # a worker that has finished closes in its own time
                host.worker.abandon()
            self._ending.append(host.worker)

    def _log(self, text: str, *arguments: Any) -> None:
        self._logger.info("%s member=%s", text % arguments, self._name)
