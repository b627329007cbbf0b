"""The thread of a lane: takes it over, runs its batches, and commits each with its positions in one transaction.

It owns the lane's producer. `core.graphs` decides: which steps a batch has, in which order it is dealt with, what
becomes of a step that fails. `core.exactly_once.blame` says whom a failed transaction blames. After any failure the
producer is thrown away, and the lane is taken over again: only Kafka knows what was committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from outbox.core.exactly_once import blame
from outbox.core.graphs import positions as decisions
from outbox.core.graphs.attempts import Begun, UnreadableRecord
from outbox.core.graphs.batch import BatchAct, StepBatch
from outbox.core.graphs.errors import StepFailure, error_record, failure_of
from outbox.core.graphs.lane import GraphLane, LaneLife, StepFate
from outbox.core.graphs.outputs import InvalidOutput, OutputMaker
from outbox.core.graphs.pairs import mismatch
from outbox.core.graphs.positions import LaneEntry, StopLane
from outbox.core.graphs.steps import Step, step_hash
from outbox.core.graphs.values import Processor, owner_of
from outbox.core.patience import Backoff, pause
from outbox.edges.kafka.common.clients import let_go
from outbox.edges.kafka.exactly_once.failures import BatchDropped, NotDelivered
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerMissing, LedgerRefused, LedgerUnreachable
from outbox.edges.kafka.exactly_once.transactional import (
    NoProducer,
    ReportsMissing,
)
from outbox.exceptions import NotAvailable
from outbox.failpoints import failpoint
from outbox.graphs.ports import LaneKafkaPort, StepsPort
from outbox.graphs.transactions import LaneTransactions, OutputsDenied
from outbox.runtime import Condition, Lock, Runtime, Thread

logger = logging.getLogger("outbox.graphs")

OUTAGE_S = 0.05, 5.0
TAKEOVER_S = 30.0
WAKE_S = 0.5
PAUSE_MAX_S = 60.0
LOOK_S = 5.0
"""How often a lane asks whether its topics are still the same."""
DOUBT_S = 30.0
"""So long a position may be out of bounds."""
_NEVER_HANDLED = (KeyboardInterrupt, SystemExit, InterruptedError, MemoryError, GeneratorExit)


@dataclass(frozen=True, slots=True)
class LaneOptions:
    graph: str
    transaction_timeout_s: float
    commit_timeout_s: float
    bytes_max: int


class GraphLaneWorker:
    def __init__(
        self,
        processor: Processor,
        partition: int,
        options: LaneOptions,
        maker: OutputMaker,
        steps: StepsPort,
        kafka: LaneKafkaPort,
        member: Any,
        changed: Condition,
        careful_turn: Lock,
        *,
        runtime: Runtime,
        fail: Callable[[BaseException], None],
    ) -> None:
        """`member`: what this process says of itself as a member of the group, as of the assignment of this lane; Kafka
        refuses it later. `changed` guards the lane: other threads give it messages and end it."""
        self.partition, self.lane = partition, GraphLane(processor)
        self._processor, self._options, self._maker, self._steps = processor, options, maker, steps
        self._kafka, self._changed, self._careful_turn = kafka, changed, careful_turn
        self._member = member
        self._runtime, self._fail = runtime, fail
        self._owner = owner_of(options.graph, processor.name)
        self._name = f"{self._owner}.{partition}"
        self._transactions = LaneTransactions(
            processor,
            partition,
            kafka,
            commit_timeout_s=options.commit_timeout_s,
            must_hurry=lambda: self._is_abandoned,
            runtime=runtime,
        )
        self._outage = Backoff(*OUTAGE_S, runtime.random)
        self._trouble = ""
        self._is_ending = self._is_doubted = False
        self._is_abandoned = False
        self._doubted_since: float | None = None
        self._looked_at = runtime.monotonic()
        self.read_from: Mapping[str, int] | None = None
        """Offsets from which on the member is to read the topics."""
        self.delivered = 0
        """Steps, by this owner."""
        self._thread: Thread = runtime.thread(self._run, f"outbox-graph-lane-{self._name}")

    # ---- for other threads, which hold the lock

    def start(self) -> None:
        self._thread.start()

    def end(self, *, is_abandoned: bool = False) -> None:
        """Finish the batch under way, or give it up."""
        self._is_ending, self._is_abandoned = True, self._is_abandoned or is_abandoned

    def doubt(self) -> None:
        """What the client reports makes the lane compare its positions again."""
        self._is_doubted = True

    def order(self) -> Mapping[str, int] | None:
        found, self.read_from = self.read_from, None
        return found

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    # ---- the thread

    def _run(self) -> None:
        try:
            while not self._is_ending:
                if self.lane.life.state is LaneLife.ASSIGNED:
                    self._take_over()
                elif self.lane.life.state is LaneLife.STOPPED or not self._turn():
                    self._wait()
        except BaseException as error:
            self._fail(error)
        finally:
            self._transactions.close()
            with self._changed:
                self.lane.end()
                self._changed.notify_all()

    def _wait(self) -> None:
        with self._changed:
            if not self._is_ending:
                left_s = self.lane.not_before - self._runtime.monotonic()
                self._changed.wait(min(WAKE_S, left_s) if left_s > 0 else WAKE_S)

    def _pause(self, seconds: float) -> None:
        give_up_at = self._runtime.monotonic() + seconds
        with self._changed:
            while not self._is_ending and (left_s := give_up_at - self._runtime.monotonic()) > 0:
                self._changed.wait(left_s)

    # ---- taking over

    def _take_over(self) -> None:
        from confluent_kafka import KafkaException

        self._transactions.drop()
        failure, stop = "", ""
        try:
            found = self._place()
        except UnreadableRecord as error:
            stop = f"A record of the graph's own topics cannot be read: {error}"
        except LedgerRefused as error:
            stop = str(error)
        except (NoProducer, LedgerUnreachable, LedgerMissing, NotAvailable, KafkaException, SystemError) as error:
            failure = str(let_go(error))
        else:
            if found is None:
                self._doubted_since = None
            elif self._is_doubt(found):
                failure = found.reason
            else:
                stop = found.reason
        if stop or failure:
            self._transactions.drop()
        if stop:
            self._stop(stop)
        elif failure:
            self._suffer(failure)

    def _is_doubt(self, found: StopLane) -> bool:
        now = self._runtime.monotonic()
        if self._doubted_since is None:
            self._doubted_since = now
        return found.is_doubtful and now < self._doubted_since + DOUBT_S

    def _place(self) -> StopLane | None:
        """Why the lane cannot begin; None: it does, or it is to end."""
        give_up_at = self._runtime.monotonic() + TAKEOVER_S
        if text := self._kafka.prepare():
            return StopLane(text)
        if not self._transactions.fence(give_up_at, lambda: not self._is_ending):
            return None
        failpoint("lane-fenced")
        # Only now: what older owners have committed stands, and they can commit nothing more.
        entry = self._kafka.entry(self.partition, give_up_at)
        begun = self._kafka.begun(self.partition, give_up_at)
        states = self._kafka.inputs(self.partition)
        if self._has_moved(entry, give_up_at):
            raise NotAvailable("Another owner has committed meanwhile: this process may have lost the lane.")
        self._transactions.knows({topic: state.topic_id for topic, state in states.items()})
        found = decisions.begin(self._processor, self.partition, entry, states)
        if isinstance(found, StopLane):
            return found
        if found.new:
            if entry is not None:
                logger.warning("topology_changed lane=%s new=%r", self._name, ", ".join(found.new))
            self._transactions.place(found.positions, self._member)
        with self._changed:
            if not self.lane.placed(found.positions, begun):
                self.read_from = dict(found.positions)
            self._changed.notify_all()
        logger.info("graph_lane_placed lane=%s positions=%r", self._name, dict(found.positions))
        return None

    def _has_moved(self, entry: LaneEntry | None, give_up_at: float) -> bool:
        """A process that is paused between both sides finds one from before and one from after another owner."""
        return self._kafka.entry(self.partition, give_up_at) != entry

    def _stop(self, reason: str) -> None:
        with self._changed:
            self.lane.stop(reason)
            self._changed.notify_all()
        logger.error("graph_lane_stopped lane=%s reason=%r", self._name, reason)

    def _suffer(self, reason: str) -> None:
        if reason != self._trouble:
            self._trouble = reason
            logger.warning("graph_lane_failing lane=%s reason=%r", self._name, reason)
        self._pause(self._outage.failed())

    # ---- a batch

    def _turn(self) -> bool:
        """False: there was nothing to do."""
        from confluent_kafka import KafkaException

        if self._renews():
            return True
        is_careful = self.lane.is_careful
        # One lane of the process at a time: whose step ends the process must not make another one's a suspect.
        if is_careful and not self._careful_turn.acquire(timeout=WAKE_S):
            return True
        with self._changed:
            batch = self.lane.next_batch(self._runtime.monotonic())
            begun = self.lane.begun(batch) if batch is not None else None
        failure: BaseException | None = None
        try:
            if batch is not None:
                self._do(batch, begun)
        except (
            NotDelivered, BatchDropped, ReportsMissing, OutputsDenied, KafkaException, SystemError,
        ) as error:  # fmt: skip
            failure = let_go(error)  # it ends here: the client is to be asked what has happened
        finally:
            if is_careful:
                self._careful_turn.release()
        if batch is None:
            return False
        if failure is not None:
            self._give_up(batch, failure)
        else:
            self._finish(batch)
        return True

    def _do(self, batch: StepBatch, begun: Begun | None) -> None:
        give_up_at = self._runtime.monotonic() + 0.6 * self._options.transaction_timeout_s
        self._transactions.begins()
        if begun is not None:
            self._transactions.record(begun)
        while (act := batch.next) is not None:
            if act is BatchAct.RUN:
                self._run_steps(batch)
                self._transactions.require_topics(batch)
                failpoint("steps-run")
                give_up_at = self._runtime.monotonic() + 0.6 * self._options.transaction_timeout_s
                if not batch.steps:
                    return
            else:
                self._transactions.act(act, batch, self._member, give_up_at)
            batch.did(act)
            if act is BatchAct.COMMIT:
                with self._changed:
                    self.lane.committed(batch)

    def _finish(self, batch: StepBatch) -> None:
        self._outage.worked()
        self._trouble = ""
        with self._changed:
            self.lane.finished(batch, self._runtime.monotonic(), self._pause_s(batch))
            self.delivered += len(batch.steps)
            self._changed.notify_all()
        if batch.is_committed:
            self._transactions.delivered(is_searching=self.lane.is_searching)
        if self.lane.life.state is LaneLife.STOPPED:
            self._transactions.drop()
            logger.error("graph_lane_stopped lane=%s reason=%r", self._name, self.lane.reason)

    def _pause_s(self, batch: StepBatch) -> float:
        before = batch.ending.attempt - 1 if batch.ending is not None else 0
        return pause(self._processor.backoff_s, PAUSE_MAX_S, max(0, before), self._runtime.random())

    # ---- its steps

    def _run_steps(self, batch: StepBatch) -> None:
        for at, step in enumerate(batch.steps):
            if self._is_abandoned:
                raise BatchDropped("The lane is given up.")
            hash_ = step_hash(self._owner, step)
            if (known := self.lane.known_failure(batch, at)) is not None:
                if self._fails(batch, at, step, hash_, known, is_final=True):
                    return
                continue
            error: BaseException | None = None
            is_pair = True
            attempt = batch.attempt if at == 0 else 1
            try:
                is_pair = not self._steps.mismatch(step)
                if is_pair:
                    batch.wrote(at, self._maker.outputs(step, hash_, self._steps.call(step, hash_, attempt)))
            except _NEVER_HANDLED:
                raise
            except Exception as raised:
                error = raised
            if not is_pair:
                with self._changed:
                    self.lane.stop_before(batch, at, StepFailure("outbox.PairMismatch", mismatch(step)))
                return
            if error is not None and self._fails(
                batch, at, step, hash_, failure_of(error), is_final=isinstance(error, InvalidOutput)
            ):
                return

    def _fails(
        self, batch: StepBatch, at: int, step: Step, hash_: str, failure: StepFailure, *, is_final: bool
    ) -> bool:
        """Whether the batch ends before this step."""
        attempts = batch.attempt if at == 0 else 1
        with self._changed:
            fate = self.lane.failed(batch, at, failure, is_final=is_final)
        logger.warning(
            "step_failed lane=%s step=%s inputs=%r attempt=%d fate=%s error=%r",
            self._name,
            hash_,
            ", ".join(f"{one.topic}[{one.partition}] {one.offset}" for one in step),
            attempts,
            fate.name.lower(),
            failure.reason,
        )
        if fate is StepFate.RECORD:
            record = error_record(
                self._processor, self._options.graph, step, hash_, failure, attempts, self._options.bytes_max
            )
            batch.wrote(at, [record])
        return fate in (StepFate.RETRY, StepFate.STOP) and not batch.is_committed

    # ---- when it failed

    def _renews(self) -> bool:
        """Whether a request may still be under way that would end a transaction of this producer's."""
        trouble = self._transactions.trouble
        now = self._runtime.monotonic()
        is_other = False
        if not trouble and now >= self._looked_at + LOOK_S:
            self._looked_at, is_other = now, self._transactions.is_of_other_topics()
        with self._changed:
            is_doubted, self._is_doubted = self._is_doubted or is_other, False
        if not trouble and not is_doubted:
            return False
        logger.info("graph_producer_renewed lane=%s trouble=%r", self._name, trouble)
        self._transactions.drop()
        with self._changed:
            self.lane.again()
            if is_doubted:
                self.lane.inputs.forget()
        return True

    def _give_up(self, batch: StepBatch, error: BaseException) -> None:
        """The batch, and with it the producer."""
        reason, stop = str(error) if isinstance(error, OutputsDenied) else "", ""
        actions = [] if reason else self._transactions.blamed(batch, error, is_ending=self._is_ending)
        for action in actions:
            with self._changed:
                stop = stop or self.lane.blamed(batch, action)
            if isinstance(action, blame.HoldTopic | blame.Outage | blame.LedgerDenied | blame.LostToOther):
                reason = reason or action.reason
        self._transactions.close()
        if batch.is_committed:
            logger.error("outputs_lost lane=%s steps=%d reason=%r", self._name, len(batch.steps), reason)
        with self._changed:
            self.lane.dropped(batch)
            self.lane.again()
        if stop:
            self._stop(stop)
        elif reason:
            self._suffer(reason)
