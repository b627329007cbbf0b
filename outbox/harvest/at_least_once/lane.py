"""The worker of one at-least-once lane: carries out what the scoreboard asks for, and tells it what came of it.

One thread owns the scoreboard and the producers. Statements run on two sessions with threads of their own: marks (with
what may not run beside them) and purges. Nothing here waits for the database, and for Kafka only a millisecond at a
time, so that finishing and abandoning are bounded whatever is down. What to do next is decided by the scoreboard alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from queue import Empty
from typing import Any
from uuid import UUID

from outbox.conf import Conf
from outbox.core.at_least_once import values as values
from outbox.core.at_least_once.lane import MarkLane, Reported
from outbox.core.at_least_once.scoreboard import Phase, Scoreboard
from outbox.core.contract import LaneHost, LaneStopped
from outbox.core.ending import EndOfLane
from outbox.core.meter import Meter
from outbox.edges.kafka.at_least_once.idempotent import MakeProducer, Producers
from outbox.edges.kafka.common import clients
from outbox.edges.postgres.common.session import Connect
from outbox.failpoints import failpoint
from outbox.harvest.at_least_once.holds import HeldMarks
from outbox.harvest.at_least_once.ports import MarkDatabase, MarkServers
from outbox.harvest.at_least_once.statements import StatementRunner
from outbox.harvest.lease_keeper import LeaseKeeper, owner_name
from outbox.harvest.readings import LaneStatistics, Troubles, keys_in_flight
from outbox.runtime import Queue, Runtime
from outbox.runtime.threads import THREADS

logger = logging.getLogger("outbox.harvest")

_PAUSE_S = 0.005  # when there is something to do and it may not be done
_REPORTS_BESIDE_STATEMENTS_S = 0.001
_REPORTS_ALONE_S = 0.01
_KEY_TRIES_AGAIN_S = 5.0  # before that a key of a partition that is away has failed once more
_EVENTS = (values.RemarkRequested, values.RecordHeld, values.NotPurged, values.DeadlineExceeded)


def limits(conf: Conf) -> values.Limits:
    """The bounds of the scoreboard as configured."""
    return values.Limits(
        in_flight_max=conf.at_least_once.in_flight_max,
        # One mark may overshoot DEFERRED_MAX; half of the buffers stays free for the keys that are not stalled.
        bytes_max=conf.at_least_once.mark_bytes_max,
        mark_max=min(
            conf.at_least_once.mark_max,
            max(100, conf.at_least_once.send_concurrency * conf.at_least_once.send_buffer // 2),
        ),
        purge_max=min(conf.at_least_once.in_flight_max, 5_000),
        shards=conf.at_least_once.send_concurrency,
        shard_buffer_max=conf.at_least_once.send_buffer,
        key_buffer_max=min(conf.at_least_once.key_buffer, conf.at_least_once.send_buffer),
        deferred_max=conf.at_least_once.deferred_max,
        mark_backoff_min_s=min(0.002, conf.harvest.mark_backoff_s),
        mark_backoff_max_s=conf.harvest.mark_backoff_s,
        io_backoff_s=conf.harvest.io_backoff_s,
        queue_timeout_s=conf.at_least_once.queue_timeout_s,
        delivery_timeout_s=2 * conf.at_least_once.delivery_timeout_s + 5.0,  # two attempts: with others, then alone
        drain_timeout_s=conf.at_least_once.drain_timeout_s,
        sweep_interval_s=conf.harvest.sweep_interval_s,
    )


class AtLeastOnce:
    """A `LaneWorker`; the constructor is the `WorkerFactory`. `connect` and `make_producer` can be replaced,
    or all of the servers."""

    def __init__(
        self,
        conf: Conf,
        lane: int,
        leader_id: UUID,
        epoch: int,
        host: LaneHost,
        *,
        connect: Connect | None = None,
        make_producer: MakeProducer = clients.idempotent_producer,
        servers: MarkServers | None = None,
        lease: LeaseKeeper | None = None,
    ) -> None:
        self._conf, self._lane, self._host = conf, lane, host
        self._servers = servers or MarkServers(
            THREADS, MarkDatabase(conf, connect), lambda lane, properties: make_producer(properties)
        )
        runtime = self._servers.runtime
        self._clock = runtime.monotonic
        self._lease = lease or LeaseKeeper(conf, self._servers.database.lease(owner_name()), runtime)
        self._lease.enter(lane, leader_id)
        self._board = Scoreboard(
            leader_id, epoch, limits(conf), self._clock(), keep_empty_key=conf.harvest.keep_empty_key
        )
        self._inbox: Queue[Callable[[float], None]] = runtime.queue()
        self._generation = 0
        self._producers = self._new_producers()
        self._ending, self._machine = EndOfLane(), MarkLane()
        self._paused = 0
        self._troubles = Troubles(lane, runtime)
        self._meter = Meter(lane, conf.metrics.metrics_interval_s, self._clock())
        self._thread = runtime.thread(self._run, f"outbox-lane-{lane}")
        self._serve: dict[type, Callable[[Any], None]] = {
            values.Send: self._send,
            values.DropProducers: self._drop_producers,
            values.RefreshLeader: lambda effect: host.refresh(lane),
            values.LaneSuperseded: lambda effect: host.step_down(lane),
            values.Finished: lambda effect: None,
            **dict.fromkeys(_EVENTS, self._emit),
        }

    # ---- what the host calls, from any thread

    def start(self) -> None:
        self._thread.start()

    def refreshed(self, leader_id: UUID) -> None:
        self._inbox.put(partial(self._refreshed, leader_id))

    def finish(self, deadline: float) -> None:
        self._ending.finish(deadline)
        if self._machine.has_ended:
            self._host.finished(self._lane)
        else:
            self._inbox.put(lambda now: self._board.finish(now, deadline))

    def abandon(self) -> None:
        self._ending.abandon()
        self._producers.silence()
        self._inbox.put(lambda now: None)

    def join(self, timeout_s: float) -> bool:
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def statistics(self) -> LaneStatistics:
        board = self._board
        return LaneStatistics(
            lane=self._lane,
            leader_id=board.leader_id,
            phase=self._machine.shown(board.phase),
            in_flight=board.in_flight,
            in_flight_keys=keys_in_flight(board),
            delivered=board.statistics().acknowledged_total,
            held=board.statistics().held + self._paused,
            held_keys=board.statistics().held,
            board=board.statistics(),
            circuit=self._troubles.circuit,
        )

    # ---- the loop

    def _run(self) -> None:
        self._statements = StatementRunner(
            self._conf,
            self._lane,
            self._board,
            self._servers,
            self._troubles,
            self._lease,
            post=self._inbox.put,
            fatal=self._host.fatal,
            kept=self._rows_kept,
        )
        self._serve |= self._statements.effects()
        self._held = HeldMarks(self._conf, self._lane, self._board, self._statements)
        try:
            self._producers.open(self._conf.at_least_once.send_concurrency)
            while self._turn():
                pass
        except BaseException as error:
            logger.exception("lane_failed lane=%d", self._lane)
            self._producers.silence()
            self._host.fatal(error)
        finally:
            self._machine.ends()
            if self._ending.is_awaited:
                self._host.finished(self._lane)
            self._close()

    def _turn(self) -> bool:
        """Whether there is another one."""
        self._take_in()
        now, board = self._clock(), self._board
        self._statements.beat()
        if not self._ending.is_dropped:
            self._held.look(now, self._host.lanes_owned())
            self._paused = self._held.paused
        if self._ending.is_dropped:
            effects = board.abandon()
        else:
            effects = board.tick(now, may_send=self._may_go_on(now), lanes=self._host.lanes_owned())
        for effect in effects:
            self._serve[type(effect)](effect)
        if board.phase is Phase.ENDED:
            return False
        if self._meter.is_due(now):
            self._read_meter(now)
        self._wait(board.wake_at() - now, idle=not effects)
        return True

    def _may_go_on(self, now: float) -> bool:
        phase = self._board.phase
        if phase is Phase.FINISHING:
            is_trusted = self._host.may_send(self._lane)
        else:
            if not self._board.in_flight:
                self._machine.gone()
            is_trusted = not self._lease.is_lost() and self._host.may_start(self._lane)
        return self._machine.may_go_on(phase, is_trusted=is_trusted, knows_holds=self._held.may_mark)

    def _take_in(self) -> None:
        """Outcomes and orders that have arrived."""
        now, inbox, producers = self._clock(), self._inbox, self._producers
        while True:
            try:
                order = inbox.get_nowait()
            except Empty:
                break
            order(now)
        producers.poll()
        if not self._ending.is_dropped:
            self._take_reports(producers, now)
        if self._machine.is_delivering:
            self._troubles.over("kafka", quiet_s=self._conf.at_least_once.delivery_timeout_s + _KEY_TRIES_AGAIN_S)

    def _take_reports(self, producers: Producers, now: float) -> None:
        board, generation = self._board, self._generation
        if producers.acknowledged:
            failpoint("after-ack")
            board.acknowledged(generation, producers.take_acknowledged(), now)
            self._machine.reported(Reported.ACKNOWLEDGED)
        if producers.undelivered:
            undelivered = producers.take_undelivered()
            self._troubles.seen("kafka", f"{undelivered[0][1]}; {producers.last_error}".rstrip("; "))
            board.undelivered(generation, [id_ for id_, _ in undelivered], now)
            self._machine.reported(Reported.UNDELIVERED)
        if producers.refused:
            board.refused(generation, producers.take_refused(), now)

    def _rows_kept(self, reason: str) -> None:
        """Empty: they are gone."""
        if not reason:
            self._machine.gone()
        elif self._machine.kept(reason):
            text = f"Lane {self._lane} is stopped. {reason} The lane then resumes by itself."
            logger.error("lane_stopped lane=%d reason=%r", self._lane, text)
            self._host.emit(LaneStopped(self._lane, text))

    def _refreshed(self, leader_id: UUID, now: float) -> None:
        self._lease.enter(self._lane, leader_id)
        self._board.refreshed(leader_id, now)

    def _wait(self, timeout_s: float, *, idle: bool) -> None:
        if timeout_s <= 0 and not idle:
            return
        timeout_s = max(timeout_s, _PAUSE_S) if idle else timeout_s
        if self._producers.outstanding:
            if self._inbox.empty():
                bound_s = _REPORTS_BESIDE_STATEMENTS_S if self._statements.under_way else _REPORTS_ALONE_S
                self._producers.wait(min(timeout_s, bound_s))
            return
        try:
            order = self._inbox.get(timeout=min(timeout_s, 1.0))
        except Empty:
            return
        order(self._clock())

    def _close(self) -> None:
        self._producers.drop()
        if self._lease.leave(self._lane, self._board.leader_id) and self._ending.is_clean:
            self._statements.release_lease()
        self._statements.close()

    # ---- Kafka

    def _new_producers(self) -> Producers:
        return Producers(
            self._conf.producer_properties,
            delivery_timeout_s=self._conf.at_least_once.delivery_timeout_s,
            keep_empty_key=self._conf.harvest.keep_empty_key,
            make=partial(self._servers.make_producer, self._lane),
            may_send=lambda: self._host.may_send(self._lane),
            runtime=self._servers.runtime,
        )

    def _send(self, effect: values.Send) -> None:
        assert effect.generation == self._generation
        failpoint("before-send")
        if self._ending.is_dropped or not self._host.may_send(self._lane):
            ids = [record.id for record in effect.records]
            self._board.undelivered(effect.generation, ids, self._clock())
            return
        self._producers.send(effect.shard, effect.records)  # type: ignore[arg-type]
        failpoint("after-send")

    def _drop_producers(self, effect: values.DropProducers) -> None:
        self._producers.drop()
        self._generation = effect.generation
        self._producers = self._new_producers()
        self._producers.open(self._conf.at_least_once.send_concurrency)

    # ---- what others learn

    def _emit(self, event: Any) -> None:
        self._host.emit(event)
        if isinstance(event, values.RecordHeld):
            self._held.refused(event, self._clock())
        if isinstance(event, values.RemarkRequested) and event.asks_election:
            self._host.doubt(self._lane)

    def _read_meter(self, now: float) -> None:
        board = self._board
        delivered = board.statistics().acknowledged_total
        if reading := self._meter.read(delivered, board.leader_id, board.in_flight, now):
            self._host.emit(reading)


class AtLeastOnceFactory:
    """A `WorkerFactory`: the workers that it makes share one lease on the table. `connect` the servers."""

    def __init__(
        self, *, owner: str = "", runtime: Runtime = THREADS, connect: Callable[[Conf], MarkServers] | None = None
    ) -> None:
        self._owner, self._runtime = owner or owner_name(), runtime
        self._connect = connect or _servers_of
        self._mutex = runtime.lock("lanes of the process")
        self._shared: tuple[MarkServers, LeaseKeeper] | None = None

    def __call__(self, conf: Conf, lane: int, leader_id: UUID, epoch: int, host: LaneHost) -> AtLeastOnce:
        with self._mutex:
            if self._shared is None:
                servers = self._connect(conf)
                self._shared = servers, LeaseKeeper(conf, servers.database.lease(self._owner), self._runtime)
        servers, lease = self._shared
        return AtLeastOnce(conf, lane, leader_id, epoch, host, servers=servers, lease=lease)


def _servers_of(conf: Conf) -> MarkServers:
    return MarkServers(THREADS, MarkDatabase(conf), lambda lane, properties: clients.idempotent_producer(properties))
