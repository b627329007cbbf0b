"""The worker of one exactly-once lane: takes it over, then sends batch after batch, one transaction each.

The lane's thread owns its producer. Records come from the rounds that all lanes of the process share, whose reader
and purges have threads of their own. Whatever a transaction raises, the producer is thrown away and the lane is taken
over again: only the ledger tells what was committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from queue import Empty
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg

from outbox.conf import Conf
from outbox.context import is_tracing
from outbox.core import faults, ledger, quarantine, times, verdict
from outbox.core.exactly_once import blame as blaming
from outbox.core.exactly_once.blame import (
    Action,
    Attempt,
    Fenced,
    HoldLikely,
    HoldRecord,
    HoldTopic,
    LedgerDenied,
    Outage,
    ProbeNext,
    Search,
    SendLess,
    Weigh,
    Weighed,
    blame,
)
from outbox.core.exactly_once.transaction import PROBING, Probe, Probing
from outbox.core.flights import has_flushed
from outbox.core.ledger import Entry, LedgerEntryError
from outbox.core.patience import Backoff, Circuit
from outbox.core.region import Region
from outbox.core.sizes import Sizes
from outbox.core.verdict import AskElection, Closed, Idle, Stop
from outbox.edges.kafka import PRODUCER_DEFAULTS, let_go
from outbox.edges.ledger_topic import LedgerMissing, LedgerUnreachable
from outbox.edges.reader import Row, parts_of
from outbox.edges.texts import explained
from outbox.edges.transactions import NoProducer, RecordRefused, ReportsMissing, TransactionalProducer, kafka_error
from outbox.exceptions import OutboxError
from outbox.failpoints import failpoint
from outbox.harvest import telling
from outbox.harvest.exactly_once_database import Database, Source
from outbox.harvest.exactly_once_holds import Holds, Name
from outbox.harvest.exactly_once_kafka import Kafka
from outbox.harvest.exactly_once_rounds import LaneState, Rounds
from outbox.harvest.exactly_once_takeover import Outcome, Owned, Takeover, Unreadable, unreadable_text
from outbox.harvest.exactly_once_values import (
    Batch,
    Broken,
    Doubt,
    End,
    ExactlyOnceStatistics,
    LaneStopped,
    Retake,
)
from outbox.harvest.lanes import LaneHost, LeftUntidily, owner_name
from outbox.harvest.ports import Servers
from outbox.harvest.readings import Meter, Troubles
from outbox.harvest.resize import LaneCount
from outbox.harvest.telling import Stopwatch
from outbox.runtime import Queue, Runtime
from outbox.runtime.threads import THREADS

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

logger = logging.getLogger("outbox.harvest")

_PATIENCE_S = 0.005  # between two looks at whether the lane may start
_BACKOFF_MIN_S, _BACKOFF_MAX_S = 0.05, 2.0
_REPEATED = (
    "lane {lane} is stopped for a moment and then taken over: the Kafka client has sent {found}, and its log named no "
    "lost connection. If the brokers have just moved the transaction coordinator, no harm was done. Else this version "
    "of confluent-kafka does not log what outbox relies on, and records may have been sent twice: run "
    "manage.py outbox_audit and go back to the version before."
)
_PARKED_S = 2.0  # a stopped lane is examined again: an operator may have settled it
_CLOSED_S, _IDLE_S = 0.05, 0.5
_IDLE_SEEN_S = 2.5  # a little more than between two heartbeats, which look at the state row too
_TAKEOVER_S = 30.0
_TOPICS_S = 5.0
_WAKE_S = 0.5
_TURN_S = 0.25
_STAGES = ("idle", "turn", "send", "reports", "guards", "commit", "takeover")
_PIECE = 500  # records: few enough to be in the processor's cache still when their digest is taken
_PROBABLY_TOO_LARGE = (
    "MSG_SIZE_TOO_LARGE: not sent yet, for it is probably larger than the topic takes (max.message.bytes). It is tried "
    "alone."
)


class NotDelivered(OutboxError):
    """Reports of a batch whose records are told apart say that some have failed."""


class BatchDropped(OutboxError):
    """The batch must not be committed, through no fault of Kafka's."""


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
            lambda topic: conf.refusal_attempts if conf.skips(topic) else 0,
            keep_empty_key=conf.keep_empty_key,
        )
        self._state = LaneState(lane, post=self._mailbox.put, holds=holds)
        self._producer: TransactionalProducer | None = None
        self._identity: UUID | None = None
        self._change = 0
        self._batch = 0
        self._known_topics: set[str] = set()
        properties = {**PRODUCER_DEFAULTS, **conf.kafka, **conf.producer}
        codec = properties.get("compression.codec", properties["compression.type"])
        self._sizes = Sizes(is_compressed=codec != "none")
        self._in_doubt = False  # a commit was begun, and whether it took effect is not known
        self._has_begun = False  # a transaction; one of which nothing was sent is the next batch's
        self._failures: list[blaming.Report] = []
        self._probing = Region(PROBING)
        self._circuit = Circuit(Backoff(_BACKOFF_MIN_S, _BACKOFF_MAX_S, runtime.random))
        self._stopwatch = Stopwatch(runtime)
        self._stopped_for = ""
        self._phase = "new"
        self._finish_by: float | None = None
        self._abandoned = self._ended = False
        self._delivered = self._batches = self._takeovers = self._renewals = 0
        self._troubles = Troubles(lane, runtime)
        self._meter = Meter(lane, conf.metrics_interval_s, runtime.monotonic())
        self._stages: dict[str, float] = dict.fromkeys(_STAGES, 0.0)
        self._thread = runtime.thread(self._run, f"outbox-lane-{lane}")

    # ---- what the host calls, from any thread

    def start(self) -> None:
        self._thread.start()

    def refreshed(self, leader_id: UUID) -> None:
        self._leader_id = leader_id

    def finish(self, deadline: float) -> None:
        self._finish_by = deadline
        self._mailbox.put(End())
        if self._ended or self._thread.ident is None:
            self._host.finished(self._lane)

    def abandon(self) -> None:
        self._abandoned = True
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
            phase=self._phase,
            in_flight=rounds.in_flight(self._lane) if rounds else 0,
            in_flight_keys=(),
            delivered=self._delivered,
            batches=self._batches,
            takeovers=self._takeovers,
            renewals=self._renewals,
            held=len(self._state.holds),
            parked=self._state.holds.refused_count,
            unpurged=self._state.submitted - self._state.acknowledged,
            circuit=self._circuit.view,
            stages=stages,
        )

    # ---- the loop

    @property
    def _is_ending(self) -> bool:
        return self._abandoned or self._finish_by is not None

    def _may_go_on(self) -> bool:
        return not self._is_ending

    def _run(self) -> None:
        try:
            self._rounds = self._find_rounds(self._state)
            parts = self._rounds.servers, self._rounds.purges
            self._takeover = Takeover(self._conf, self._lane, *parts)
            self._lane_count = LaneCount(self._conf, *parts)
            while not self._is_ending:
                self._turn(self._rounds)
        except BaseException as error:
            known = isinstance(error, OutboxError)
            logger.error("lane_failed lane=%d reason=%r", self._lane, str(error), exc_info=None if known else error)
            self._host.fatal(error)
        finally:
            self._close()

    def _turn(self, rounds: Rounds) -> None:
        """One life of a producer, and the pause after it."""
        self._phase = "waiting"
        if not self._host.may_start(self._lane):
            self._pause(_PATIENCE_S)
            return
        try:
            pause_s = self._own(rounds)
            if self._producer is not None:
                pause_s = self._harvest(rounds)
        except (psycopg.Error, LedgerUnreachable, LedgerMissing, NoProducer) as error:
            self._troubles.seen("takeover", explained(error))
            pause_s = self._backoff(str(error))
        finally:
            rounds.failed(self._state)
            self._drop_producer()
        self._pause(pause_s)

    def _own(self, rounds: Rounds) -> float:
        """Take the lane over; the pause before another attempt when it cannot be had."""
        self._phase = "taking over"
        begun = self._runtime.monotonic()
        rounds.prepare()
        if not rounds.wait_purged(self._state, self._may_go_on):
            return 0.0
        outcome = self._lane_count_followed() or self._waits(rounds) or self._examined(rounds) or self._taken_over()
        self._stages["takeover"] += self._runtime.monotonic() - begun
        if isinstance(outcome, Owned):
            self._producer, self._batch, self._identity = outcome.producer, outcome.batch, outcome.identity
            self._in_doubt = False
            self._take_care(rounds)
            self._change = outcome.state.resize_no
            self._takeovers += 1
            self._stopped_for = ""
            self._troubles.over("takeover")
            now = self._runtime.monotonic()
            self._circuit.may_try(now)  # both servers answer; whether they take records is not known
            logger.info("lane_taken lane=%d batch=%d after_s=%.3f", self._lane, self._batch, now - begun)
            rounds.ready(self._state, self._batch, outcome.state, outcome.server)
            return 0.0
        if isinstance(outcome, AskElection):
            self._host.doubt(self._lane)
            return self._backoff("another owner may be at work")
        if isinstance(outcome, Stop | Unreadable):
            return self._park(outcome.text)
        if isinstance(outcome, Closed | Idle):
            self._phase = "closed" if isinstance(outcome, Closed) else "idle"
            return _CLOSED_S if isinstance(outcome, Closed) else _IDLE_S
        return 0.0

    def _take_care(self, rounds: Rounds) -> None:
        """Whether the owner before has died, and of which record; from now on this one's death would be noticed."""
        table, lane, holds = rounds.database.holds, self._lane, self._state.holds

        def look(connection: Any) -> quarantine.Care:
            found = table.watch(connection, lane)
            care = quarantine.after(found, rounds.owner)
            if found is None or found.owner != rounds.owner or found.is_clean:
                table.own(connection, lane, rounds.owner, care)
            elif found.started:
                table.start(connection, lane, rounds.owner, ())
            return care

        care = rounds.purges.ask(look, self._may_go_on)
        if care is None:
            return  # it ends
        holds.is_careful = care.is_careful
        if care.suspects:
            holds.suspect(care.suspects)
        if care.culprit is not None:
            logger.error("record_quarantined lane=%d id=%d crashes=%d", lane, care.culprit, care.crashes)
        elif care.crashes and not self._takeovers:
            logger.warning("unclean_takeover lane=%d crashes=%d suspects=%d", lane, care.crashes, len(care.suspects))

    def _lane_count_followed(self) -> AskElection | Stop | Unreadable | None:
        """The owner of lane 0 changes the count, before it takes the lane over like every other."""
        if self._lane != 0:
            return None
        return self._lane_count.follow(self._may_take_over, self._host.partitions_added)

    def _waits(self, rounds: Rounds) -> Closed | Idle | None:
        """Asked before, to spare both servers what is only to be thrown away; what counts is read after the init. What
        a lane waits for is found out for all lanes of the process together."""
        for wanted, max_age_s in ((Idle, _IDLE_SEEN_S), (Closed, _CLOSED_S)):
            state = rounds.seen_state(max_age_s, self._may_take_over)
            if state is None:
                return None
            found = verdict.waits_for(self._lane, state)
            if isinstance(found, wanted):
                return found
        return None

    def _examined(self, rounds: Rounds) -> Closed | Stop | Unreadable | None:
        try:
            return rounds.idle_lanes.examine(_TAKEOVER_S, self._may_take_over)
        except LedgerEntryError as error:
            return Unreadable(unreadable_text(self._lane, error))

    def _taken_over(self) -> Outcome:
        return self._takeover.run(_TAKEOVER_S, self._may_take_over)

    def _may_take_over(self) -> bool:
        """A lost election ends a takeover before it fences the rightful owner."""
        return not self._is_ending and self._host.may_start(self._lane)

    def _park(self, text: str) -> float:
        self._phase = "stopped"
        if text != self._stopped_for:
            self._stopped_for = text
            logger.error("lane_stopped lane=%d reason=%r", self._lane, text)
            self._host.emit(LaneStopped(self._lane, text))
        return _PARKED_S

    def _backoff(self, reason: str) -> float:
        return self._circuit.failed(self._runtime.monotonic(), reason)

    def _pause(self, seconds: float) -> None:
        """Ends at once when the lane ends; batches and orders of an earlier readiness are stale."""
        give_up_at = self._runtime.monotonic() + seconds
        while not self._is_ending and (left_s := give_up_at - self._runtime.monotonic()) > 0:
            try:
                order = self._mailbox.get(timeout=left_s)
            except Empty:
                return
            self._raise_if_broken(order)

    def _harvest(self, rounds: Rounds) -> float:
        """Send batches until one fails; the pause before the next takeover."""
        while not self._is_ending:
            self._phase = "ready"
            order = self._next_order()
            if isinstance(order, Batch):
                if order.session != self._state.session:
                    continue
                if (pause_s := self._try(rounds, order)) is not None:
                    return pause_s
            elif isinstance(order, Doubt):
                self._host.doubt(self._lane)
                return self._backoff("another owner may be at work")
            elif isinstance(order, Retake):
                return 0.0
            elif isinstance(order, Stop):
                return self._park(order.text)
            elif (pause_s := self._renewal()) is not None:
                return pause_s  # at rest: the next record does not have to wait for it
        return 0.0

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

    @property
    def _is_probing(self) -> bool:
        return self._probing.state is not Probing.WHOLE

    def _try(self, rounds: Rounds, batch: Batch) -> float | None:
        """Send a batch; None: the next may follow. Else the producer is done with: how long to pause."""
        from confluent_kafka import KafkaException

        self._phase = "sending"
        if (pause_s := self._renewal()) is not None:
            return pause_s
        failure: BaseException | None = None
        try:
            if not self._host.may_start(self._lane) or not self._topics_exist(rounds, batch):
                return 0.0
            self._leave_out_large(batch)
            entry = self._transact_watched(rounds, batch)
        except (NotDelivered, BatchDropped, ReportsMissing, KafkaException, SystemError) as error:
            failure = let_go(error)  # it ends here: the client is to be asked what has happened
        if failure is not None:
            return self._after_failure(rounds, batch, failure)
        if entry is None:
            return self._renewal()
        tracing = self._conf.tracing and is_tracing()
        told = telling.delivered(batch, entry, self._stopwatch, tracing=tracing, runtime=self._runtime)
        failpoint("after-commit")
        if self._sizes and len(batch.rows) == 1:  # as a record that was held
            self._sizes.taken(batch.rows[0][1], parts_of(batch.rows[0]))
        rounds.committed(self._state, batch, entry)  # from here on another thread may purge
        self._in_doubt = False
        self._host.emit(told)
        self._batch = entry.batch
        self._batches += 1
        self._delivered += entry.count
        self._circuit.worked()
        self._probing.on(Probe.FOUND_NOTHING_YET if self._state.holds.is_narrow else Probe.DELIVERED)
        self._calm_down(rounds)
        self._troubles.over("send")
        return self._renewal()

    def _renewal(self) -> float | None:
        """Whether a request may still be under way that would end a transaction of this producer's."""
        producer = self._producer
        assert producer is not None
        producer.poll()
        if producer.repeated:
            return self._park(_REPEATED.format(lane=self._lane, found=producer.repeated))
        if not producer.trouble:
            return None
        self._renewals += 1
        logger.info("producer_renewed lane=%d trouble=%r", self._lane, producer.trouble)
        return 0.0

    def _transact_watched(self, rounds: Rounds, batch: Batch) -> Entry | None:
        """After a crash it is written down before which records are sent, one lane of the process after the other."""
        holds = self._state.holds
        if not (holds.is_careful or holds.is_risky):
            return self._transact(batch)
        table, lane, owner = rounds.database.holds, self._lane, rounds.owner
        while not rounds.careful_turn.acquire(timeout=0.05):
            if not self._may_go_on():
                raise BatchDropped("the lane ends before its careful turn")
        try:
            holds.is_careful = True
            rounds.purges.ask(lambda connection: table.start(connection, lane, owner, batch.ids), self._may_go_on)
            if not (self._may_go_on() and self._host.may_start(lane)):
                raise BatchDropped("the lane ends or is not trusted any more before its careful turn")
            failpoint("careful")
            entry = self._transact(batch)
            rounds.purges.tell(lambda connection: table.start(connection, lane, owner, ()))
            return entry
        finally:
            rounds.careful_turn.release()

    def _calm_down(self, rounds: Rounds) -> None:
        holds = self._state.holds
        if holds.is_careful and not holds.is_narrow:
            holds.is_careful = False
            table, lane, owner = rounds.database.holds, self._lane, rounds.owner
            rounds.purges.tell(lambda connection: table.calm(connection, lane, owner))

    def _transact(self, batch: Batch) -> Entry | None:
        """None: every record was refused before it was sent, so there is nothing to commit."""
        producer = self._producer
        assert producer is not None
        assert self._identity is not None
        if self._renewal() is not None:
            raise BatchDropped(f"the producer must be renewed: {producer.trouble or producer.repeated}")
        failures = self._failures = []
        self._probing.on(Probe.BEGUN)
        stages, began, self._stopwatch = self._stages, self._runtime.monotonic(), Stopwatch(self._runtime)
        failpoint("before-send")
        if not self._has_begun:
            producer.begin()
        self._has_begun = True
        with self._turn_to_send(batch) as turned:
            give_up_at = turned + 0.6 * self._conf.transaction_timeout_s
            digest, newest = self._send(producer, batch, give_up_at)
        if not (batch.rows or batch.errands):
            assert self._rounds is not None
            self._rounds.not_sent(self._state, batch)
            return None
        if batch.rows and not self._is_probing:  # else what the ledger is refused would be blamed on the records
            producer.announce(self._ledger_name, self._lane, ledger.BEGINNING_KEY, ledger.BEGINNING)
        failpoint("after-send")
        sent = self._runtime.monotonic()
        stages["turn"] += turned - began
        stages["send"] += sent - turned
        # Beside the brokers' work: nothing of it is needed before the reports are in.
        payload, entry = self._entry(batch, digest, newest)
        producer.wait_reports(lambda: self._is_over(give_up_at))
        if failures:
            raise NotDelivered
        self._probing.on(Probe.ACKNOWLEDGED)
        failpoint("after-ack")
        acknowledged = self._runtime.monotonic()
        stages["reports"] += acknowledged - sent
        self._await_guards(batch, give_up_at)
        guarded = self._runtime.monotonic()
        stages["guards"] += guarded - acknowledged
        key, headers = ledger.entry_key(self._lane), ledger.headers(entry)
        producer.send_entry(self._ledger_name, self._lane, key, payload, headers)
        failpoint("before-commit")
        self._in_doubt, self._has_begun = True, False
        producer.commit(self._conf.commit_timeout_s, lambda: self._is_over(give_up_at))
        self._stopwatch.commit_s = self._runtime.monotonic() - guarded
        stages["commit"] += self._stopwatch.commit_s
        return entry

    def _send(self, producer: TransactionalProducer, batch: Batch, give_up_at: float) -> tuple[int, int | None]:
        """The digest of what was handed over, and its newest time: of each piece while the processor has it at hand.
        What the client does not take is held, and left out with what follows of its key; the transaction knows nothing
        of it."""
        holds, rows, digest = self._state.holds, batch.rows, 0
        sent: list[Row] = []
        newest: list[int] = []
        refused: dict[Name, tuple[Row, str]] = {}
        piece, begin = rows[:0], 0
        try:
            for begin in range(0, len(rows), _PIECE):
                piece = holds.without(rows[begin : begin + _PIECE], refused)
                while piece:
                    taken, text = self._send_piece(producer, piece, give_up_at, len(sent))
                    if done := piece[:taken]:
                        digest += ledger.digest(done)
                        newest.append(times.newest(done))
                        sent += done
                    if text is not None:
                        refused[holds.name_of(piece[taken])] = piece[taken], text
                    piece = holds.without(piece[taken + 1 :], refused)
        finally:
            if refused:
                self._leave_out(batch, sent + holds.without(piece + rows[begin + _PIECE :], refused), refused.values())
        return digest, max(newest, default=None)

    def _send_piece(
        self, producer: TransactionalProducer, piece: Sequence[Row], give_up_at: float, begin: int
    ) -> tuple[int, str | None]:
        """How many of these were handed over, and why not the next one."""
        try:
            producer.send(piece, give_up_at, _reporter(self._failures, begin) if self._is_probing else None)
        except RecordRefused as error:
            return error.index, str(error)
        return len(piece), None

    def _leave_out_large(self, batch: Batch) -> None:
        """What is probably larger than its topic takes is held, to be sent alone later: among the others it would cost
        them their transaction, and the lane its producer."""
        if not self._sizes:
            return
        holds, sizes, rows = self._state.holds, self._sizes, []
        large: dict[Name, tuple[Row, str]] = {}
        for row in batch.rows:
            if large and holds.name_of(row) in large:
                continue
            if row[1] in sizes and sizes.exceeds(row[1], parts_of(row)) and not holds.is_tried(row):
                large[holds.name_of(row)] = row, _PROBABLY_TOO_LARGE
            else:
                rows.append(row)
        if large:
            self._leave_out(batch, rows, large.values(), is_sure=False)

    def _leave_out(
        self, batch: Batch, rows: list[Row], refused: Iterable[tuple[Row, str]], *, is_sure: bool = True
    ) -> None:
        assert self._rounds is not None
        for held in self._rounds.left_out(self._state, batch, rows, refused, is_sure=is_sure):
            self._host.emit(held)

    @contextmanager
    def _turn_to_send(self, batch: Batch) -> Iterator[float]:
        """Since when. The lanes of a process share the interpreter: if they send at once, all of them end late; in
        turn, the first has its answers when the last has sent. A turn that does not come is done without."""
        assert self._rounds is not None
        turn = self._rounds.sending_turn
        is_mine = turn.acquire(timeout=_TURN_S if batch.rows and not self._is_ending else 0)
        try:
            yield self._runtime.monotonic()
        finally:
            if is_mine:
                turn.release()

    def _entry(self, batch: Batch, digest: int, newest: int | None) -> tuple[bytes, Entry]:
        assert self._identity is not None
        entry = Entry(
            self._lane,
            self._batch + 1,
            self._leader_id,
            self._identity,
            tuple(batch.ids),
            digest,
            batch.read_at,
            self._change,
            newest,
        )
        return ledger.encode(entry), entry

    def _is_over(self, give_up_at: float) -> bool:
        """Whether to wait no longer for what this transaction needs."""
        now = self._runtime.monotonic()
        return self._abandoned or now > give_up_at or (self._finish_by is not None and now > self._finish_by)

    @property
    def _ledger_name(self) -> str:
        assert self._rounds is not None
        return self._rounds.kafka.name

    def _await_guards(self, batch: Batch, give_up_at: float) -> None:
        """What was read must be on PostgreSQL's disk, and the batch before this one purged."""
        for awaited in (batch.flush, batch.previous):
            while awaited is not None and not awaited.wait(0.05):
                if self._is_over(give_up_at):
                    raise BatchDropped("PostgreSQL did not confirm the flush or the purge before the commit in time")
            if awaited is not None and awaited.error is not None:
                raise BatchDropped(f"PostgreSQL failed before the commit: {awaited.error}")
        previous = batch.previous
        if previous is not None and self._lane in previous.stops:
            raise BatchDropped("the batch before this one could not be purged")
        since = previous.flushed_since if previous is not None and previous.flushed_on == batch.server else None
        if batch.flush is None and not has_flushed(since, batch.asked_at):
            raise BatchDropped("the purge of the batch before this one did not flush what was read")
        if self._rounds is not None and not self._rounds.is_claimed():
            raise BatchDropped("the claim on the table could not be repeated in time, another way may have it")

    def _topics_exist(self, rounds: Rounds, batch: Batch) -> bool:
        """An unknown topic inside a transaction stalls it: asked before, once per topic."""
        if batch.topics <= self._known_topics:
            return True
        new = {row[1] for row in batch.rows} - self._known_topics
        if not new:
            return True
        assert self._producer is not None
        missing = self._producer.unknown_topics(new, _TOPICS_S)
        self._known_topics |= new - missing.keys()
        for topic, text in missing.items():
            row = next(row for row in batch.rows if row[1] == topic)
            self._hold(rounds, row, f"topic {topic!r}: {text}", whole_topic=True)
        return not missing

    # ---- when it failed

    def _hold(self, rounds: Rounds, row: Any, error: str, *, whole_topic: bool = False) -> None:
        now = self._runtime.monotonic()
        held = rounds.guarded(lambda: self._state.holds.refused(row, error, now, whole_topic=whole_topic))
        self._host.emit(held)

    def _failure(self, error: BaseException) -> blaming.Failure:
        """What was raised, as a value. The client is asked for the cause where it may know more than it has raised."""
        if isinstance(error, BatchDropped):
            return blaming.Dropped(str(error))
        if isinstance(error, ReportsMissing):
            return blaming.Unacknowledged(str(error))
        if isinstance(error, NotDelivered):
            return blaming.Undelivered(self._cause())
        found = kafka_error(error)
        raised = blaming.Raised("_STATE", str(error)) if found is None else _raised(found)
        if faults.kind_of(raised.name) is faults.Kind.PRODUCER:
            # Refused while the rest of the batch was handed over: the client tells the reason only when asked.
            return self._cause() or raised
        return raised

    def _cause(self) -> blaming.Raised | None:
        cause = self._producer.cause() if self._producer is not None else None
        return None if cause is None else _raised(cause)

    def _after_failure(self, rounds: Rounds, batch: Batch, error: BaseException) -> float:
        """The pause before the lane is taken over again."""
        failure = self._failure(error)
        attempt = Attempt(
            batch.rows,
            self._probing.state,
            self._failures,
            is_ending=self._is_ending,
            ledger=self._ledger_name,
            request_bytes=self._takeover.request_bytes,
        )
        actions = blame(attempt, failure)
        if isinstance(weigh := actions[0], Weigh):
            actions = blame(replace(attempt, weighed=self._weighed(rounds, batch.rows, weigh.at)), failure)
        pause_s = 0.0
        for action in actions:
            pause_s = self._act(rounds, batch, action)
        return pause_s

    def _weighed(self, rounds: Rounds, rows: Sequence[Row], suspects: Iterable[int]) -> Weighed:
        sizes, topics = self._sizes, {rows[at][1] for at in suspects}
        for topic, limit in rounds.kafka.size_limits(topics).items():
            sizes.limited(topic, limit)
        exceeding = tuple(at for at in suspects if sizes.exceeds(rows[at][1], parts_of(rows[at])))
        return Weighed(exceeding, sizes.least_limit(topics))

    def _act(self, rounds: Rounds, batch: Batch, action: Action) -> float:
        rows, holds = batch.rows, self._state.holds
        match action:
            case HoldRecord(at, reason, is_too_large):
                self._hold(rounds, rows[at], reason)
                if is_too_large:
                    self._sizes.refused(rows[at][1], parts_of(rows[at]))
            case HoldTopic(at, reason):
                self._hold(rounds, rows[at], reason, whole_topic=True)
            case HoldLikely(ats, reason):
                likely: dict[Name, Row] = {}
                for at in ats:
                    likely.setdefault(holds.name_of(rows[at]), rows[at])
                for held in rounds.held(self._state, ((row, reason) for row in likely.values()), is_sure=False):
                    self._host.emit(held)
            case Search(ats, code):
                rounds.guarded(lambda: holds.refused_batch([rows[at][0] for at in ats], rows, code))
            case SendLess(limit):
                self._takeover.request_bytes = limit
            case ProbeNext():
                self._probing.on(Probe.WANTED)
                self._known_topics.clear()
            case Outage(reason, is_too_slow):
                if is_too_slow:
                    rounds.too_slow(batch)
                self._troubles.seen("send", reason)
                return self._backoff(reason)
            case LedgerDenied(reason) | Fenced(reason):
                self._troubles.seen("send", reason)
                if isinstance(action, Fenced):
                    self._host.doubt(self._lane)
                return self._backoff(reason)
        return 0.0

    # ---- ends

    def _read_meter(self, now: float) -> None:
        if self._meter.is_due(now):
            reading = self._meter.read(self._delivered, self._leader_id, 0, now)
            if reading is not None:
                self._host.emit(reading)

    def _drop_producer(self) -> None:
        producer, self._producer, self._has_begun = self._producer, None, False
        if producer is not None:
            producer.drop()

    def _close(self) -> None:
        self._drop_producer()
        rounds = self._rounds
        if rounds is not None:
            if self._finish_by is not None:
                is_settled = self._leave_tidily(rounds)
            else:
                is_settled = not (self._in_doubt or self._state.unpurged)
            rounds.leave(self._state, is_settled=is_settled)
        self._phase = "ended"
        self._ended = True
        self._log_end()
        if self._finish_by is not None:
            self._host.finished(self._lane)

    def _log_end(self) -> None:
        """With the seconds of each stage: where the time of a slow lane went."""
        spent = "".join(f" {name}_s={seconds:.3f}" for name, seconds in self._stages.items())
        logger.info(
            "lane_ended lane=%d delivered=%d batches=%d takeovers=%d renewals=%d%s",
            self._lane, self._delivered, self._batches, self._takeovers, self._renewals, spent,
        )  # fmt: skip

    def _leave_tidily(self, rounds: Rounds) -> bool:
        """Whether everything is settled. Nothing is lost when this cannot be done in time: the successor settles it.
        Another way could not."""
        rounds.failed(self._state)
        try:
            if self._in_doubt and not self._was_settled(rounds):
                return self._left_untidily("whether the last batch was committed is not known", is_unpurged=True)
            if not rounds.wait_purged(self._state, self._may_wait):
                return self._left_untidily("PostgreSQL did not confirm the last purge in time", is_unpurged=True)
            if self._stopped_for:
                return self._left_untidily(
                    "the lane is stopped, and what was sent may be in the table", is_unpurged=True
                )
            table, lane, owner = rounds.database.holds, self._lane, rounds.owner
            rounds.purges.ask(lambda connection: table.leave(connection, lane, owner), self._may_wait)
            rounds.release_way(self._state, self._may_wait)
        except (psycopg.Error, OutboxError) as error:
            return self._left_untidily(str(error), is_unpurged=self._in_doubt or self._state.unpurged)
        return True

    def _was_settled(self, rounds: Rounds) -> bool:
        """A change of the lane count that left this lane without a share has fenced and settled it before: what became
        of its last batch is known, though not here."""
        state = rounds.seen_state(0.0, self._may_wait)
        if state is None or state.resize_no <= self._change:
            return False
        return isinstance(verdict.waits_for(self._lane, state), Idle)

    def _left_untidily(self, reason: str, *, is_unpurged: bool) -> bool:
        logger.info("left_untidily lane=%d reason=%r", self._lane, reason)
        if is_unpurged:
            self._host.emit(LeftUntidily(self._lane, reason))
        return not is_unpurged

    def _may_wait(self) -> bool:
        return not self._abandoned and self._finish_by is not None and self._runtime.monotonic() < self._finish_by


def _raised(error: KafkaError) -> blaming.Raised:
    return blaming.Raised(error.name(), error.str())


def _reporter(failures: list[blaming.Report], begin: int) -> Callable[[int], Callable[[Any, Any], None]]:
    def report_of(index: int) -> Callable[[Any, Any], None]:
        def report(error: Any, message: Any) -> None:
            if error is not None:
                failures.append((begin + index, error.name(), error.str()))

        return report

    return report_of


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
        self._connect = connect or (lambda conf: Servers(runtime, Database(conf, source, runtime), Kafka(conf)))
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
