"""The worker of one exactly-once lane: takes it over, then sends batch after batch, one transaction each.

The lane's thread owns where the lane stands (`core.exactly_once.lane`), its transactions with their producer, its
takeovers and its watch for crashes. Records come from the rounds that all lanes of the process share, whose reader and
purges have threads of their own: they post batches and orders to the lane's mailbox, and what the rounds know of the
lane is under their lock. The host posts to the mailbox too, and sets how the lane ends.

Whatever a transaction raises, the producer is thrown away and the lane is taken over again: only the ledger tells what
was committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from queue import Empty
from typing import Any
from uuid import UUID

import psycopg

from outbox.conf import Conf
from outbox.core.at_least_once.values import RecordHeld
from outbox.core.contract import LaneHost, UncleanRelease
from outbox.core.ending import EndOfLane
from outbox.core.exactly_once import decisions, membership
from outbox.core.exactly_once.blame import (
    Action,
    HoldLikely,
    HoldRecord,
    HoldTopic,
    LedgerDenied,
    LostToOther,
    Outage,
    ProbeNext,
    Search,
    SendLess,
    Weigh,
    blame,
)
from outbox.core.exactly_once.decisions import AskElection, Closed, Idle, Stop
from outbox.core.exactly_once.lane import CLOSED_S, AskHost, Did, Lane, StayStopped, TryAgain, what_follows
from outbox.core.exactly_once.ledger import LedgerEntryError
from outbox.core.exactly_once.membership import LeaveStep, Leaving, Unclean
from outbox.core.exactly_once.takeover import Unreadable, unreadable, was_settled
from outbox.core.exactly_once.transaction import Producer, judge
from outbox.core.holds.book import Holds
from outbox.core.meter import Meter
from outbox.core.patience import Backoff, Circuit
from outbox.core.rows import parts_of
from outbox.edges.kafka.common.clients import let_go
from outbox.edges.kafka.exactly_once.failures import BatchDropped, NotDelivered
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerMissing, LedgerUnreachable
from outbox.edges.kafka.exactly_once.transactional import NoProducer, ReportsMissing
from outbox.edges.postgres.common.texts import explained
from outbox.exceptions import OutboxError
from outbox.failpoints import failpoint
from outbox.harvest.exactly_once import batch_report
from outbox.harvest.exactly_once.crashes import CrashWatch
from outbox.harvest.exactly_once.kafka import LaneKafka
from outbox.harvest.exactly_once.ports import Servers
from outbox.harvest.exactly_once.resize import LaneCount
from outbox.harvest.exactly_once.rounds.database import Database, Source
from outbox.harvest.exactly_once.rounds.lanes import LaneState
from outbox.harvest.exactly_once.rounds.rounds import Rounds
from outbox.harvest.exactly_once.takeover import Outcome, Owned, Takeover
from outbox.harvest.exactly_once.transaction import Transactions
from outbox.harvest.exactly_once.values import (
    Batch,
    Broken,
    Command,
    End,
    ExactlyOnceStatistics,
    LaneStopped,
    MayNotGoOn,
)
from outbox.harvest.lease_keeper import owner_name
from outbox.harvest.readings import Troubles
from outbox.messages.context import is_tracing
from outbox.runtime import Queue, Runtime
from outbox.runtime.threads import THREADS

logger = logging.getLogger("outbox.harvest")

_PATIENCE_S = 0.005  # between two looks at whether the lane may start
_BACKOFF_MIN_S, _BACKOFF_MAX_S = 0.05, 2.0
_REPEATED = (
    "Lane {lane} stops for a moment and is then taken over again. The Kafka client has sent {found}, but its log named "
    "no lost connection. If the brokers have just moved the transaction coordinator, no harm was done. Otherwise this "
    "version of confluent-kafka does not log what outbox relies on, and Kafka may have records twice: run "
    "manage.py outbox_verify, and go back to the previous version."
)
_ANOTHER_OWNER = "Another owner may be working on this lane."
_STOPPED_S = 2.0  # a stopped lane is examined again: an operator may have settled it
_IDLE_SEEN_S = 2.5  # a little more than between two heartbeats, which look at the state row too
_TAKEOVER_S = 30.0
_WAKE_S = 0.5
_STAGES = ("idle", "turn", "send", "reports", "guards", "commit", "takeover")


class ExactlyOnce:
    """A `LaneWorker`."""

    def __init__(
        self,
        conf: Conf,
        lane: int,
        leader_id: UUID,
        host: LaneHost,
        rounds: Callable[[LaneState], Rounds],
        runtime: Runtime,
    ) -> None:
        self._conf, self._lane, self._leader_id, self._host = conf, lane, leader_id, host
        self._runtime = runtime
        self._find_rounds = rounds
        self._rounds: Rounds | None = None
        self._mailbox: Queue[Any] = runtime.queue()
        holds = Holds(
            lane,
            lambda topic: conf.rejections.rejection_attempts if conf.rejections.skips(topic) else 0,
            keep_empty_key=conf.harvest.keep_empty_key,
        )
        self._state = LaneState(lane, post=self._mailbox.put, holds=holds)
        self._ending = EndOfLane()
        self._circuit = Circuit(Backoff(_BACKOFF_MIN_S, _BACKOFF_MAX_S, runtime.random))
        self._machine = Lane()
        self._delivered = self._batches = self._takeovers = self._renewals = 0
        self._troubles = Troubles(lane, runtime)
        self._meter = Meter(lane, conf.metrics.metrics_interval_s, runtime.monotonic())
        self._stages: dict[str, float] = dict.fromkeys(_STAGES, 0.0)
        self._thread = runtime.thread(self._run, f"outbox-lane-{lane}")

    # ---- what the host calls: the first four in threads of the election, under its lock, and `abandon` also in the
    # thread that supervises, at the end; the others in any thread

    def start(self) -> None:
        self._thread.start()

    def refreshed(self, leader_id: UUID) -> None:
        self._leader_id = leader_id

    def finish(self, deadline: float) -> None:
        self._ending.finish(deadline)
        self._mailbox.put(End())
        if self._machine.has_ended or self._thread.ident is None:
            self._host.finished(self._lane)

    def abandon(self) -> None:
        self._ending.abandon()
        self._mailbox.put(End())

    def join(self, timeout_s: float) -> bool:
        give_up_at = self._runtime.monotonic() + timeout_s
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout_s))
        rounds = self._rounds
        if rounds is not None and rounds.is_closing and not rounds.join(give_up_at - self._runtime.monotonic()):
            return False
        return not self._thread.is_alive()

    def statistics(self) -> ExactlyOnceStatistics:
        rounds = self._rounds
        stages = {**self._stages, **(rounds.stages if rounds else {})}
        return ExactlyOnceStatistics(
            lane=self._lane,
            leader_id=self._leader_id,
            phase=self._machine.phase,
            in_flight=rounds.in_flight(self._lane) if rounds else 0,
            in_flight_keys=(),
            delivered=self._delivered,
            batches=self._batches,
            takeovers=self._takeovers,
            renewals=self._renewals,
            held=len(self._state.holds),
            held_keys=self._state.holds.rejected_count,
            unpurged=self._state.submitted - self._state.acknowledged,
            circuit=self._circuit.view,
            stages=stages,
        )

    # ---- the loop

    def _may_go_on(self) -> bool:
        return not self._ending.is_asked_for

    def _run(self) -> None:
        try:
            self._rounds = self._find_rounds(self._state)
            parts = self._rounds.servers, self._rounds.purges
            self._takeover = Takeover(self._conf, self._lane, *parts)
            self._lane_count = LaneCount(self._conf, *parts)
            self._transactions = self._transactions_on(self._rounds)
            self._crashes = CrashWatch(self._state, self._rounds, self._may_go_on, self._host.may_start)
            self._machine.made()
            while not self._ending.is_asked_for:
                self._turn(self._rounds)
        except BaseException as error:
            known = isinstance(error, OutboxError)
            logger.error("lane_failed lane=%d reason=%r", self._lane, str(error), exc_info=None if known else error)
            self._host.fatal(error)
        finally:
            self._close()

    def _transactions_on(self, rounds: Rounds) -> Transactions:
        return Transactions(
            self._conf, self._state, rounds, self._ending, lambda: self._leader_id, self._host.emit, self._stages
        )

    def _turn(self, rounds: Rounds) -> None:
        """One life of a producer, and the pause after it."""
        self._machine.on(Did.TURN)
        if not self._host.may_start(self._lane):
            self._pause(_PATIENCE_S)
            return
        try:
            pause_s = self._own(rounds)
            if self._transactions.producer is not None:
                pause_s = self._harvest(rounds)
        except MayNotGoOn:
            pause_s = 0.0
        except (psycopg.Error, LedgerUnreachable, LedgerMissing, NoProducer) as error:
            self._troubles.seen("takeover", explained(error))
            pause_s = self._backoff(str(error))
        finally:
            rounds.failed(self._state)
            self._transactions.drop()
        self._pause(pause_s)

    def _own(self, rounds: Rounds) -> float:
        """Take the lane over; the pause before another attempt when it cannot be had."""
        self._machine.on(Did.ALLOWED)
        begun = self._runtime.monotonic()
        rounds.prepare()
        if not rounds.wait_purged(self._state, self._may_go_on):
            return 0.0
        outcome = self._lane_count_followed() or self._waits(rounds) or self._examined(rounds) or self._taken_over()
        self._stages["takeover"] += self._runtime.monotonic() - begun
        if isinstance(outcome, Owned):
            self._transactions.own(outcome)
            self._crashes.take_care(is_first=not self._takeovers)
            self._takeovers += 1
            self._machine.taken_over()
            self._troubles.over("takeover")
            now = self._runtime.monotonic()
            self._circuit.may_try(now)  # both servers answer; whether they take records is not known
            logger.info("lane_taken lane=%d batch=%d after_s=%.3f", self._lane, outcome.batch, now - begun)
            rounds.ready(self._state, outcome.batch, outcome.state, outcome.server)
            return 0.0
        return self._follow(what_follows(outcome))

    def _lane_count_followed(self) -> AskElection | Stop | Unreadable | None:
        """The owner of lane 0 changes the count, before it takes the lane over like every other."""
        if self._lane != 0:
            return None
        return self._lane_count.follow(self._may_take_over, self._host.partitions_added)

    def _waits(self, rounds: Rounds) -> Closed | Idle | None:
        """A hint before the takeover: it spares the servers an init whose producer would be thrown away. The takeover
        reads the row again after its init. One question serves all lanes of the process."""
        for wanted, max_age_s in ((Idle, _IDLE_SEEN_S), (Closed, CLOSED_S)):
            found = decisions.waits_for(self._lane, rounds.seen_state(max_age_s, self._may_take_over))
            if isinstance(found, wanted):
                return found
        return None

    def _examined(self, rounds: Rounds) -> Closed | Stop | Unreadable | None:
        try:
            return rounds.idle_lanes.examine(_TAKEOVER_S, self._may_take_over)
        except LedgerEntryError as error:
            return unreadable(self._lane, error)

    def _taken_over(self) -> Outcome:
        return self._takeover.run(_TAKEOVER_S, self._may_take_over)

    def _may_take_over(self) -> bool:
        """A lost election ends a takeover before it fences the rightful owner."""
        return not self._ending.is_asked_for and self._host.may_start(self._lane)

    def _stay_stopped(self, text: str) -> float:
        if self._machine.stopped(text):
            logger.error("lane_stopped lane=%d reason=%r", self._lane, text)
            self._host.emit(LaneStopped(self._lane, text))
        return _STOPPED_S

    def _backoff(self, reason: str) -> float:
        self._machine.on(Did.FAILED)
        return self._circuit.failed(self._runtime.monotonic(), reason)

    def _pause(self, seconds: float) -> None:
        """Ends at once when the lane ends; batches and orders of an earlier readiness are stale, here and later."""
        give_up_at = self._runtime.monotonic() + seconds
        while not self._ending.is_asked_for and (left_s := give_up_at - self._runtime.monotonic()) > 0:
            try:
                order = self._mailbox.get(timeout=left_s)
            except Empty:
                return
            self._raise_if_broken(order)

    def _harvest(self, rounds: Rounds) -> float:
        """Send batches until one fails; the pause before the next takeover."""
        self._machine.on(Did.TOOK_OVER)
        while not self._ending.is_asked_for:
            order = self._next_order()
            if isinstance(order, Batch | Command) and not self._state.expects(order.session):
                continue
            if isinstance(order, Batch):
                self._machine.on(Did.DEALT)
                if (pause_s := self._try(rounds, order)) is not None:
                    return pause_s
                self._machine.on(Did.DELIVERED)
            elif isinstance(order, Command):
                return self._follow(what_follows(order.what))
            elif (pause_s := self._renewal()) is not None:
                return pause_s  # at rest: the next record does not have to wait for it
        return 0.0

    def _follow(self, what: AskHost | StayStopped | TryAgain) -> float:
        """The pause before the lane is taken over again."""
        match what:
            case AskHost():
                self._host.doubt(self._lane)
                return self._backoff(_ANOTHER_OWNER)
            case StayStopped(text):
                return self._stay_stopped(text)
            case TryAgain(pause_s, found):
                if found is not None:
                    self._machine.on(found)
                return pause_s

    def _next_order(self) -> Any:
        begun = self._runtime.monotonic()
        try:
            order = self._mailbox.get(timeout=_WAKE_S)
        except Empty:
            order = End()
        now = self._runtime.monotonic()
        self._stages["idle"] += now - begun
        self._read_meter(now)
        self._raise_if_broken(order)
        return order

    @staticmethod
    def _raise_if_broken(order: Any) -> None:
        if isinstance(order, Broken):
            raise order.error

    # ---- one transaction

    def _try(self, rounds: Rounds, batch: Batch) -> float | None:
        """Send a batch; None: the next may follow. Else the producer is done with: how long to pause."""
        from confluent_kafka import KafkaException

        transactions = self._transactions
        if (pause_s := self._renewal()) is not None:
            return pause_s
        failure: BaseException | None = None
        try:
            if not self._host.may_start(self._lane) or self._hold_missing_topics(rounds, batch):
                return 0.0
            transactions.leave_out_large(batch)
            entry = self._crashes.watched(batch, lambda: transactions.run(batch, self._must_renew))
        except (NotDelivered, BatchDropped, ReportsMissing, KafkaException, SystemError) as error:
            failure = let_go(error)  # it ends here: the client is to be asked what has happened
        if failure is not None:
            return self._after_failure(rounds, batch, failure)
        if entry is None:
            return self._renewal()
        tracing = self._conf.stash.tracing and is_tracing()
        told = batch_report.delivered(batch, entry, transactions.stopwatch, tracing=tracing, runtime=self._runtime)
        failpoint("after-commit")
        transactions.sizes.delivered(batch.rows)
        rounds.committed(self._state, batch, entry)  # from here on another thread may purge
        transactions.delivered(entry.batch)
        self._host.emit(told)
        self._batches += 1
        self._delivered += entry.count
        self._circuit.worked()
        self._crashes.calm_down(entry.count)
        self._troubles.over("send")
        return self._renewal()

    def _hold_missing_topics(self, rounds: Rounds, batch: Batch) -> bool:
        missing = self._transactions.missing_topics(batch)
        for topic, text in missing.items():
            row = next(row for row in batch.rows if row[1] == topic)
            self._hold(rounds, row, f"topic {topic!r}: {text}", whole_topic=True)
        return bool(missing)

    def _renewal(self) -> float | None:
        """Whether a request may still be under way that would end a transaction of this producer's."""
        producer = self._transactions.producer
        assert producer is not None
        producer.poll()
        match judge(producer.trouble, producer.repeated):
            case Producer.GOOD:
                return None
            case Producer.REPEATED:
                return self._stay_stopped(_REPEATED.format(lane=self._lane, found=producer.repeated))
            case Producer.TROUBLED:
                self._renewals += 1
                logger.info("producer_renewed lane=%d trouble=%r", self._lane, producer.trouble)
                return 0.0

    def _must_renew(self) -> str:
        """Why; empty: it need not."""
        producer = self._transactions.producer
        assert producer is not None
        return "" if self._renewal() is None else producer.trouble or producer.repeated

    # ---- when it failed

    def _hold(self, rounds: Rounds, row: Any, error: str, *, whole_topic: bool = False, is_named: bool = False) -> None:
        now, holds = self._runtime.monotonic(), self._state.holds

        def hold() -> RecordHeld:
            is_sure = holds.counts(row, is_named=is_named)
            return holds.refused(row, error, now, whole_topic=whole_topic, is_sure=is_sure)

        self._host.emit(rounds.guarded(hold))

    def _after_failure(self, rounds: Rounds, batch: Batch, error: BaseException) -> float:
        """The pause before the lane is taken over again."""
        transactions = self._transactions
        failure = transactions.failure(error)
        attempt = transactions.attempt(batch, self._takeover.request_bytes)
        actions = blame(attempt, failure)
        if isinstance(weigh := actions[0], Weigh):
            actions = blame(replace(attempt, weighed=transactions.weighed(batch.rows, weigh.at)), failure)
        pause_s = 0.0
        for action in actions:
            pause_s = self._act(rounds, batch, action)
        return pause_s

    def _act(self, rounds: Rounds, batch: Batch, action: Action) -> float:
        rows, holds = batch.rows, self._state.holds
        match action:
            case HoldRecord(at, reason, is_too_large, is_named):
                self._hold(rounds, rows[at], reason, is_named=is_named)
                if is_too_large:
                    self._transactions.sizes.refused(rows[at][1], parts_of(rows[at]))
            case HoldTopic(at, reason):
                self._hold(rounds, rows[at], reason, whole_topic=True)
            case HoldLikely(ats, reason):
                likely = holds.first_of_each_key(rows[at] for at in ats)
                for held in rounds.held(self._state, ((row, reason) for row in likely), is_sure=False):
                    self._host.emit(held)
            case Search(ats, code):
                rounds.guarded(lambda: holds.refused_batch([rows[at][0] for at in ats], rows, code))
            case SendLess(limit):
                self._takeover.send_less(limit)
            case ProbeNext():
                self._transactions.probe_next()
            case Outage(reason, is_too_slow):
                if is_too_slow:
                    rounds.too_slow(batch)
                self._troubles.seen("send", reason)
                return self._backoff(reason)
            case LedgerDenied(reason) | LostToOther(reason):
                self._troubles.seen("send", reason)
                if isinstance(action, LostToOther):
                    self._host.doubt(self._lane)
                return self._backoff(reason)
        return 0.0

    # ---- ends

    def _read_meter(self, now: float) -> None:
        if self._meter.is_due(now):
            reading = self._meter.read(self._delivered, self._leader_id, 0, now)
            if reading is not None:
                self._host.emit(reading)

    def _close(self) -> None:
        rounds = self._rounds
        if rounds is not None:
            rounds.leave(self._state, is_settled=not self._machine.is_made or self._settled(rounds))
        self._machine.on(Did.END)
        self._log_end()
        if self._ending.is_awaited:
            self._host.finished(self._lane)

    def _settled(self, rounds: Rounds) -> bool:
        self._transactions.drop()
        if self._ending.is_awaited:
            return self._leave_tidily(rounds)
        return not (self._transactions.is_in_doubt or self._may_have_left_rows)

    def _log_end(self) -> None:
        """With the seconds of each stage: where the time of a slow lane went."""
        spent = "".join(f" {name}_s={seconds:.3f}" for name, seconds in self._stages.items())
        logger.info(
            "lane_ended lane=%d delivered=%d batches=%d takeovers=%d renewals=%d%s",
            self._lane, self._delivered, self._batches, self._takeovers, self._renewals, spent,
        )  # fmt: skip

    def _leave_tidily(self, rounds: Rounds) -> bool:
        """Whether everything is settled. If there is no time for that, nothing is lost: the next owner settles it. Only
        another delivery mode could not."""
        rounds.failed(self._state)
        known = Leaving(self._transactions.is_in_doubt)
        try:
            while not isinstance(step := membership.next_step(known), Unclean):
                if step is LeaveStep.GIVE_BACK:
                    self._crashes.leave(self._may_wait)
                    rounds.release_lease(self._state, self._may_wait)
                    return True
                known = self._settled_more(rounds, known, step)
        except (psycopg.Error, OutboxError) as error:
            return self._unclean_release(str(error), is_unpurged=self._transactions.is_in_doubt or self._state.unpurged)
        return self._unclean_release(step.reason, is_unpurged=True)

    def _settled_more(self, rounds: Rounds, known: Leaving, step: LeaveStep) -> Leaving:
        if step is LeaveStep.ASK_STATE_ROW:
            return replace(known, was_settled=self._was_settled(rounds))
        is_purged = rounds.wait_purged(self._state, self._may_wait)
        return replace(known, is_purged=is_purged, may_have_left_rows=self._may_have_left_rows)

    @property
    def _may_have_left_rows(self) -> bool:
        """Also when the purge was given up and the lane has not read so yet."""
        return self._machine.awaits_decision or self._state.unpurged

    def _was_settled(self, rounds: Rounds) -> bool:
        return was_settled(self._lane, rounds.seen_state(0.0, self._may_wait), self._transactions.change)

    def _unclean_release(self, reason: str, *, is_unpurged: bool) -> bool:
        logger.info("unclean_release lane=%d reason=%r", self._lane, reason)
        if is_unpurged:
            self._host.emit(UncleanRelease(self._lane, reason))
        return not is_unpurged

    def _may_wait(self) -> bool:
        return self._ending.leaves_time(self._runtime.monotonic())


class ExactlyOnceFactory:
    """A `WorkerFactory`: the workers that it makes share one reader. `source` replaces the alias' parameters,
    `connect` the servers."""

    def __init__(
        self,
        *,
        source: Source | None = None,
        owner: str = "",
        runtime: Runtime = THREADS,
        connect: Callable[[Conf], Servers] | None = None,
    ) -> None:
        self._runtime, self._owner = runtime, owner or owner_name()
        self._connect = connect or (lambda conf: Servers(runtime, Database(conf, source, runtime), LaneKafka(conf)))
        self._mutex = runtime.lock("lanes of the process")
        self._rounds: Rounds | None = None
        self._unsettled: set[int] = set()

    def __call__(self, conf: Conf, lane: int, leader_id: UUID, epoch: int, host: LaneHost) -> ExactlyOnce:
        return ExactlyOnce(conf, lane, leader_id, host, lambda state: self._register(conf, state), self._runtime)

    def _register(self, conf: Conf, state: LaneState) -> Rounds:
        with self._mutex:
            if self._rounds is None or not self._rounds.register(state):
                self._rounds = Rounds(conf, self._connect(conf), self._owner, self._unsettled)
                registered = self._rounds.register(state)
                assert registered
            return self._rounds
