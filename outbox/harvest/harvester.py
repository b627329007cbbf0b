"""The harvester: joins the election, gives every lane that it owns a worker, tells logs and receivers what happens.

One supervising thread prepares, waits and tears down. What the election says is heard by `owned_lanes.OwnedLanes`. How
a lane is harvested is its worker's affair.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any
from uuid import UUID

from outbox import conf as settings
from outbox.core.contract import WorkerFactory
from outbox.core.election.denials import Denial, Refusals
from outbox.edges.kafka.common.wall_clock import WallClock, nudge_all
from outbox.election.clients import Clients
from outbox.election.errors import denied
from outbox.election.member import Member
from outbox.election.topic import LeaderTopic
from outbox.exceptions import OutboxError
from outbox.harvest import preflight
from outbox.harvest.lease_keeper import owner_name
from outbox.harvest.metrics import Measured, Measurements
from outbox.harvest.owned_lanes import OwnedLanes
from outbox.harvest.samples import SampleWriter
from outbox.service.lifecycle import Daemon, State, StopOutOfTime
from outbox.service.receivers import Events

LEAVE_TIMEOUT_S = 5.0
# Refused for so long, a harvester tries the secrets that are given now; after as long again it ends.
DENIED_S = 60.0
JOIN_TIMEOUT_S = 5.0


class Harvester(Daemon):
    """Harvests in the background between `start` and `stop`. Every method is thread-safe."""

    def __init__(
        self,
        conf: settings.Conf | None = None,
        *,
        worker_factory: WorkerFactory | None = None,
        clients: Clients | None = None,
        check_table: Callable[[str, str], UUID | None] | None = None,
        member_name: str = "",
        fail_fast: bool = False,
        logger: logging.Logger | None = None,
    ) -> None:
        """`conf` is the OUTBOX settings when it is absent; with `fail_fast` an outage at the start is an error."""
        logger = logger or logging.getLogger("outbox.harvest")
        super().__init__("harvester", thread="outbox-harvester", logger=logger, fail_fast=fail_fast)
        self.conf = conf or settings.current()
        self.member_name = member_name or f"{owner_name()}_{int(time.time())}"
        self._factory = worker_factory or default_factory(self.conf, self.member_name)
        self._clients = clients
        self._database: UUID | None = None
        self._check_table = check_table or (lambda alias, table: preflight.look(self.conf, self.member_name))
        self._events = Events(Harvester, self, logger)
        self._member: Member | None = None
        self._measurements = Measurements()
        self._sampler = SampleWriter(self.conf, lambda: self.led_last, lambda: self.measured.rejected)
        self._owned = OwnedLanes(
            self.conf,
            self._factory,
            self._events,
            self._measurements,
            self.fail,
            self._unclean_release,
            name=self.member_name,
            logger=logger,
        )

    # ---- what is going on

    @property
    def leader_ids(self) -> dict[int, UUID]:
        """The lanes that this harvester owns, with their leader ids."""
        return self._owned.leader_ids

    @property
    def is_leader(self) -> bool:
        """Whether this harvester owns lane 0: exactly one of all harvesters does, outside of takeovers."""
        return 0 in self.leader_ids

    @property
    def led_last(self) -> bool:
        """Whether it owns lane 0, or did until Kafka went away and knows of no successor: it takes the samples."""
        return self.is_leader or (self._member is not None and self._member.led_last(0))

    @property
    def leader_id(self) -> UUID | None:
        """The leader id of lane 0, if this harvester owns it."""
        return self.leader_ids.get(0)

    @property
    def statistics(self) -> dict[int, Any]:
        """One snapshot per lane in work."""
        return self._owned.statistics()

    @property
    def in_flight(self) -> int:
        """Records that were sent and are not yet known to be delivered and purged."""
        return sum(statistics.in_flight for statistics in self.statistics.values())

    @property
    def in_flight_keys(self) -> tuple[Any, ...]:
        """The (topic, key) pairs of the records in flight."""
        return tuple(key for found in self.statistics.values() for key in getattr(found, "in_flight_keys", ()))

    @property
    def is_ready(self) -> bool:
        """Whether both servers have answered and this harvester takes part in the election, as owner or standby: it
        leads, or could. While the brokers refuse it, or nobody's heartbeats arrive, it could not."""
        member = self._member
        if self._state is not State.RUNNING or member is None:
            return False
        return bool(self.leader_ids) or not (member.denied_s or member.is_cut_off)

    @property
    def measured(self) -> Measured:
        """What this harvester has counted since it began, for metrics."""
        is_cut_off = self._state is State.RUNNING and self._member is not None and self._member.is_cut_off
        return self._measurements.read(self.leader_ids, is_cut_off=is_cut_off)

    @property
    def events_dropped(self) -> int:
        """Events that no receiver saw, because receivers could not follow."""
        return self._events.dropped_total

    # ---- the supervising thread

    def _work(self) -> None:
        self._events.start()
        partitions = self._prepare()
        if partitions is not None:
            self._elect(partitions)

    def _prepare(self) -> int | None:
        """Wait until both servers answer and allow what is needed; None when stopped meanwhile."""
        conf = self.conf

        def table() -> bool:
            self._database = self._check_table(conf.database, conf.table)
            return True

        if not self._until_available(table):
            return None
        self._clients = self._clients or Clients(conf)
        with closing(LeaderTopic(self._clients, conf, self._stopping)) as topic:
            partitions = self._until_available(partial(self._look_at_topic, topic))
        if partitions is None or not self._until_available(preflight.LookAtBrokers(conf, fail_fast=self._fail_fast)):
            return None
        return partitions

    def _look_at_topic(self, topic: LeaderTopic) -> int:
        partitions = topic.prepare()
        if self._database is not None:
            topic.look_for_others(partitions, self._database)
        return partitions

    def _elect(self, partitions: int) -> None:
        self._join(partitions)
        assert self._member is not None
        self._sampler.start()
        clock, denials = WallClock(), Refusals()
        while not self._stopping.wait(1.0):
            self._owned.forget_ended()
            if back_s := clock.set_back_s():
                self._logger.warning("clock_set_back seconds=%.1f", back_s)
                nudge_all()
            denied_s = self._member.denied_s
            denial = denials.judge(denied_s, time.monotonic(), DENIED_S)
            if denial is Denial.GIVE_UP:
                raise denied(self.conf, 2 * DENIED_S)
            if denial is Denial.RENEW:
                self._logger.warning("election_renewed denied_s=%.0f", denied_s)
                self._leave(self._member, is_forced=True)
                self._join(partitions)
                denials.renewed(time.monotonic())

    def _join(self, partitions: int) -> None:
        """A member with clients of its own, which have the secrets of this moment."""
        assert self._clients is not None
        self._member = Member(
            self.conf,
            self._owned.hear,
            self.fail,
            clients=self._clients,
            partitions=partitions,
            name=self.member_name,
            database=self._database,
        )
        self._owned.follow(self._member)
        self._member.start()

    def _tear_down(self) -> None:
        """Every wait is bounded, so that a stop ends also while PostgreSQL or Kafka are away."""
        self._sampler.stop()
        if self._member is not None:
            self._leave(self._member, is_forced=self._is_forced)
        self._owned.join_workers(JOIN_TIMEOUT_S)
        self._events.close(LEAVE_TIMEOUT_S)

    def _abandon(self) -> None:
        if self._member is not None:
            self._member.abandon()

    def _leave(self, member: Member, *, is_forced: bool) -> None:
        if is_forced:
            member.abandon()
        else:
            member.stop()
        if not member.join(self.conf.election.revoke_timeout_s + LEAVE_TIMEOUT_S):
            self._logger.warning(
                "group_not_left name=%s: the brokers remove the member after SESSION_TIMEOUT", self.conf.name
            )

    def _unclean_release(self, reason: str) -> None:
        """A lane that only moves is settled by its next owner; what a stop leaves behind is told."""
        self._fail_unless_forced(
            StopOutOfTime(
                f"The harvester stopped before it had settled everything. {reason.rstrip('.')}. Nothing is lost, and "
                f"the next harvester with DELIVERY={self.conf.delivery!r} continues. Another delivery mode would send "
                "again what Kafka already has. Before you switch, run: python manage.py harvest --once"
            )
        )

    def _log_state(self, state: State) -> None:
        if state is State.RUNNING:
            self._log("harvester_started name=%s delivery=%s", self.conf.name, self.conf.delivery)
        elif state is State.STOPPING:
            self._log("harvester_stopping")
        else:
            self._log("harvester_stopped")

    def _log_failure(self, error: BaseException) -> None:
        known = isinstance(error, OutboxError | ValueError)
        self._logger.error("harvester_failed reason=%r", str(error), exc_info=None if known else error)

    def _log(self, text: str, *arguments: Any) -> None:
        self._logger.info("%s member=%s", text % arguments, self.member_name)


def default_factory(conf: settings.Conf, owner: str = "") -> WorkerFactory:
    """The worker of the delivery that the settings name; others see the process as `owner`."""
    if conf.delivery == settings.EXACTLY_ONCE:
        from outbox.harvest.exactly_once.lane import ExactlyOnceFactory

        return ExactlyOnceFactory(owner=owner)
    from outbox.harvest.at_least_once.lane import AtLeastOnceFactory

    return AtLeastOnceFactory(owner=owner)
