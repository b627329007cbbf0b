"""A worker: calls the user's function, in one transaction with the positions of what it handles.

It owns a Django connection. It takes tasks from the `Assignment`, calls the ports and tells what became of it: which
messages a transaction takes, whom a failure blames and where a partition is read from is decided in `core.consumers`.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from sys import _current_frames
from typing import Any

from outbox.consumers.assignment import AskForHeld, Assignment, Compare, Leave, Load
from outbox.consumers.ports import (
    CommitInDoubt,
    Handle,
    HeldPort,
    LeavesOut,
    OwnersPort,
    PositionsPort,
    SeenPort,
    TopicsPort,
    TransactionPort,
)
from outbox.consumers.work.calls import Calls, MessageAtFault, Refusal
from outbox.consumers.work.dedupe import Dedupe
from outbox.consumers.work.loads import Loads
from outbox.consumers.work.watch import HOOK, Call, CallWatch
from outbox.core.consumers import blame, holding, log
from outbox.core.consumers.batch import BatchStep, ConsumerBatch, Stage
from outbox.core.consumers.holding import CAREFUL_MAX
from outbox.core.consumers.partition import AssignedPartition, Form
from outbox.core.consumers.values import ConsumerOptions, Fetched, Partition, Position
from outbox.core.patience import Backoff
from outbox.exceptions import NotAvailable, OutboxError
from outbox.failpoints import failpoint
from outbox.runtime import Runtime, Thread

logger = logging.getLogger("outbox.consumers")

OUTAGE_S = 0.2, 10.0
CONFLICT_S = 0.01, 1.0


class ConsumerStopped(OutboxError):
    """The consumer cannot go on until somebody changes something; the text says what."""


class ProcessMustEnd(OutboxError):
    """The function has asked the process to end, or memory is short."""


@dataclass(frozen=True, slots=True)
class WorkerPorts:
    """What one worker acts through."""

    positions: PositionsPort
    held: HeldPort
    owners: OwnersPort
    seen: SeenPort
    transaction: TransactionPort
    topics: TopicsPort


class ConsumerWorker:
    def __init__(
        self,
        number: int,
        options: ConsumerOptions,
        handle: Handle,
        assignment: Assignment,
        servers: WorkerPorts,
        *,
        runtime: Runtime,
        fail: Callable[[BaseException], None],
        identify: Callable[[Fetched], str] | None = None,
        leaves_out: LeavesOut | None = None,
    ) -> None:
        """`fail` is called with what ends the consumer; `identify` returns the id by which a repeated message is
        known."""
        self._leaves_out = leaves_out
        self._number, self._options = number, options
        self._assignment, self._fail = assignment, fail
        self._positions, self._transaction = servers.positions, servers.transaction
        self._held, self._owners, self._runtime = servers.held, servers.owners, runtime
        self._watch = CallWatch(runtime, options.call_timeout_s)
        dedupe = None if identify is None else Dedupe(options, identify, servers.seen, self._watch)
        self._dedupe = dedupe
        self._calls = Calls(number, options, handle, assignment, servers.transaction, self._watch, runtime, dedupe)
        self._outage = Backoff(*OUTAGE_S, runtime.random)
        self._conflict = Backoff(*CONFLICT_S, runtime.random)
        loading = servers.positions, servers.owners, servers.transaction, servers.topics
        self._loads = Loads(options, loading, self._watch, Backoff(*OUTAGE_S, runtime.random))
        self._is_away = self._is_cancelled = False
        self._release_max = CAREFUL_MAX
        self._giving_back: Sequence[int] = ()
        """Rows whose attempts the transaction gives back."""
        self._thread: Thread = runtime.thread(self._run, f"outbox-consumer-{options.name}-{number}")

    # ---- for whoever runs it

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_waiting(self) -> bool:
        """For a server."""
        return self._is_away or self._loads.is_waiting

    @property
    def call(self) -> Call | None:
        """Which call its thread is in; None: none that is watched."""
        return self._watch.call

    def stack(self) -> str:
        """Of its thread."""
        frame = _current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame is not None else ""

    def cancel(self) -> None:
        """Ends what the function asks of PostgreSQL."""
        self._is_cancelled = True
        self._transaction.cancel()

    # ---- its thread

    def _run(self) -> None:
        try:
            while (task := self._assignment.task(self._number)) is not None:
                self._tidy()
                if isinstance(task, ConsumerBatch):
                    self._batch(task)
                elif isinstance(task, Load):
                    self._load(task)
                elif isinstance(task, Compare):
                    self._look(task)
                elif isinstance(task, Leave):
                    self._leave(task)
                else:
                    self._ask_for_held(task)
        except ProcessMustEnd as error:
            self._fail(error)  # the message may be what ends it, so nothing is left cleanly
        except BaseException as error:
            self._leave_the_rest()
            self._fail(error)
        else:
            self._leave_the_rest()
        finally:
            self._transaction.close()

    # ---- what is asked between batches

    def _load(self, load: Load) -> None:
        partitions = [one.partition for one in load.partitions]
        try:
            loaded = self._loads.load(partitions, self._assignment.acknowledged(load.partitions))
        except BaseException as error:
            self._assignment.loaded(load, {}, {})
            self._asked_in_vain(error)
        else:
            self._works_again()
            self._assignment.loaded(load, loaded.found, loaded.stopped, loaded.pause_s, loaded.suspicions)

    def _tidy(self) -> None:
        if self._dedupe is not None:
            try:
                self._dedupe.tidy(self._transaction.connection, self._runtime.monotonic())
            except BaseException as error:
                self._asked_in_vain(error)

    def _leave(self, task: Leave) -> None:
        """They were taken back, and nothing of them is under way."""
        try:
            self._loads.leave(task.partitions)
        except BaseException as error:
            self._asked_in_vain(error)

    def _leave_the_rest(self) -> None:
        """The thread ends, and the process does not die."""
        partitions = self._assignment.left(self._number)
        if partitions and not self._assignment.is_abandoned:
            with suppress(Exception):  # the successor is careful for a while, and nothing else
                self._loads.leave(partitions)

    def _look(self, look: Compare) -> None:
        partitions = [one.partition for one in look.partitions]
        try:
            with self._watch.during("load"):
                rows = self._positions.load(self._transaction.connection(), self._options.name, partitions)
        except BaseException as error:
            self._asked_in_vain(error)
        else:
            self._works_again()
            self._assignment.looked(look.partitions, rows)

    def _ask_for_held(self, task: AskForHeld) -> None:
        partitions = [one.partition for one in task.partitions]
        try:
            with self._watch.during("held"):
                found = self._held.look(self._transaction.connection(), self._options.name, partitions)
        except BaseException as error:
            self._asked_in_vain(error)
        else:
            self._works_again()
            held = {one: one.partition in found for one in task.partitions}
            self._assignment.asked_for_held(held, [one for one in task.partitions if found.get(one.partition)])

    # ---- a batch

    def _batch(self, batch: ConsumerBatch) -> None:
        try:
            hooks, ids = self._transact(batch)
        except CommitInDoubt as doubt:
            batch.stage.on(BatchStep.LOST)
            self._settle(batch, doubt.hooks)
        except BaseException as error:
            failure = self._failure(error, is_of_function=batch.has_raised)
            if self._is_replaced(batch):
                failure = blame.Replaced(batch.replaced(f"then failed with {failure.text}"))
            self._give_up(batch, failure, error)
        else:
            if hooks is None:
                self._dropped(batch)
            else:
                self._committed(batch, hooks, ids)

    def _transact(self, batch: ConsumerBatch) -> tuple[Sequence[Callable[[], None]] | None, Sequence[int]]:
        """The hooks of on_commit, after COMMIT, and the ids of rows of held messages. None: nothing was to be
        committed."""
        self._is_cancelled = False
        failpoint("batch-taken")
        self._record(batch)
        with self._watch.during("begin"):
            connection = self._transaction.begin(self._options.timeout_s)
        self._lock(connection, batch)
        if batch.partitions:
            failpoint("batch-locked")
            self._look_for_held(connection, batch)
            self._calls.run(connection, batch)
        if not batch.partitions or batch.is_empty:
            with self._watch.during("rollback"):
                self._transaction.rollback()
            return None, ()
        failpoint("batch-handled")
        ids = self._write(connection, batch)
        failpoint("batch-written")
        batch.stage.on(BatchStep.COMMITS)
        with self._watch.during("commit"):
            hooks = self._transaction.commit()
        failpoint("batch-committed")
        return hooks, ids

    def _record(self, batch: ConsumerBatch) -> None:
        """The message that comes next is about to be begun by itself."""
        self._record_offset(batch, batch.offset_to_record)

    def _record_offset(self, batch: ConsumerBatch, offset: int | None) -> None:
        one = batch.everything[0]
        if offset is not None and one.caution.recorded != offset:
            with self._watch.during("record"):
                connection = self._transaction.connection()
                self._owners.begin(connection, self._options.name, one.partition, offset)
            one.caution.record(offset)

    def _dropped(self, batch: ConsumerBatch) -> None:
        """Another message may be begun before its own: if that one ends the process, only that one counts."""
        self._forget_record(batch)
        self._assignment.dropped(batch)

    def _forget_record(self, batch: ConsumerBatch) -> None:
        one = batch.everything[0]
        if one.caution.suspects:
            with suppress(Exception), self._watch.during("record"):  # else the message is suspected wrongly
                self._owners.given_up(self._transaction.connection(), self._options.name, one.partition)
                one.caution.record(None)

    def _lock(self, connection: Any, batch: ConsumerBatch) -> None:
        with self._watch.during("lock"):
            found, xid = self._positions.lock(connection, self._options.name, batch.partitions)
        self._assignment.locked(batch, found, xid)

    def _look_for_held(self, connection: Any, batch: ConsumerBatch) -> None:
        if asks := batch.asks:
            with self._watch.during("held"):
                batch.blocked(self._held.keys(connection, self._options.name, asks))
        if self._leaves_out is not None:
            with self._watch.during("held"):
                batch.leave_out(self._leaves_out(connection, list(batch.left)))
        if batch.release is not None:
            (one,) = batch.staying
            limit = 1 if self._assignment.failing or one.caution.is_careful else self._release_max
            with self._watch.during("held"):
                rows = self._held.take(connection, self._options.name, one.partition, limit)
            if one.caution.is_careful:
                batch.release.taken_once_recorded(rows, one.caution.recorded)
            else:
                batch.release.taken(rows, is_full=holding.is_full(rows, limit))
            failpoint("batch-releasing")

    def _write(self, connection: Any, batch: ConsumerBatch) -> Sequence[int]:
        if problem := self._transaction.problem():
            raise Refusal(blame.Untrusted(problem))
        ids = self._write_held(connection, batch)
        with self._watch.during("write"):
            moved, xid = self._positions.write(connection, self._options.name, batch.reached)
        if objection := batch.objection(moved, xid):
            raise Refusal(blame.Replaced(objection))
        batch.stage.on(BatchStep.WRITTEN)
        return ids

    def _write_held(self, connection: Any, batch: ConsumerBatch) -> Sequence[int]:
        ids: Sequence[int] = ()
        with self._watch.during("held"):
            if batch.kept:
                ids = self._held.keep(connection, self._options, batch.kept)
            if batch.release is not None:
                self._held.change(connection, self._options, batch.partitions[0], batch.release)
            self._giving_back = self._assignment.to_give_back()
            if self._giving_back:
                self._held.give_back(connection, self._giving_back)
        if batch.passes is not None:
            one, offset = batch.passes
            with self._watch.during("passed"):
                is_last = one.caution.clears(offset)
                self._owners.passed(connection, self._options.name, one.partition, is_last=is_last)
        if batch.kept or batch.release is not None:
            failpoint("batch-holding")
        return ids

    def _committed(self, batch: ConsumerBatch, hooks: Sequence[Callable[[], None]], ids: Sequence[int] = ()) -> None:
        self._works_again()
        self._conflict.worked()
        if batch.passes is None:
            self._forget_record(batch)  # the held message that was recorded is not to be tried any more
        handled = self._assignment.committed(self._number, batch, ids, self._giving_back)
        if batch.release is not None:
            self._record_held(batch)
            self._release_max = min(CAREFUL_MAX, 2 * self._release_max)
        is_of_each = batch.release is not None or (batch.form is Form.CAREFUL and not self._options.many)
        if handled and not is_of_each and self._assignment.message_handled():
            logger.info("consumer_goes_on consumer=%s", self._options.name)
        for hook in hooks:
            try:
                with self._watch.during(HOOK, self._options.timeout_s):
                    hook()
            except Exception:
                logger.exception("hook_failed consumer=%s", self._options.name)

    def _record_held(self, batch: ConsumerBatch) -> None:
        """One that the next transaction is to try."""
        if batch.release is None or batch.release.to_record is None:
            return
        try:
            self._record_offset(batch, batch.release.to_record)
        except BaseException as error:
            self._asked_in_vain(error)

    def _settle(self, batch: ConsumerBatch, hooks: Sequence[Callable[[], None]]) -> None:
        """Nothing is counted, and nothing else is begun, until the rows have told what became of the COMMIT."""
        self._transaction.close()
        while True:
            try:
                found = self._rows_after_commit(batch)
                break
            except BaseException as error:
                if not self._settle_later(batch, error):
                    return
        if batch.release is None:
            took_effect = batch.settled(found)
        else:  # it has moved no position
            took_effect = self._is_committed(batch)
        logger.info(
            "commit_settled consumer=%s messages=%d committed=%s", self._options.name, batch.messages, took_effect
        )
        if took_effect:
            self._committed(batch, hooks)
        else:
            self._assignment.moved(batch.everything)
            self._assignment.dropped(batch)

    def _rows_after_commit(self, batch: ConsumerBatch) -> Mapping[Partition, tuple[Position, int]]:
        with self._watch.during("settle"):
            return self._positions.settle(self._transaction.connection(), self._options.name, batch.partitions)

    def _settle_later(self, batch: ConsumerBatch, error: BaseException) -> bool:
        """The rows could not be read. False: it must not be tried again."""
        self._act_on_outage(blame.blame(blame.BatchAttempt(0, is_locking=True), self._failure(error)), batch)
        self._assignment.sleep(self._outage.failed())
        return not self._assignment.is_abandoned

    # ---- failures

    def _failure(self, error: BaseException, *, is_of_function: bool = False) -> blame.Failure:
        if isinstance(error, Refusal):
            return error.failure
        if isinstance(error, MessageAtFault):
            return blame.FunctionRaised(error.failed.reason)
        if isinstance(error, NotAvailable) and not is_of_function:
            return blame.KafkaUnavailable(str(error))
        return self._transaction.failure(error, is_of_function=is_of_function)

    def _is_replaced(self, batch: ConsumerBatch) -> bool:
        """Whether the function has ended the transaction itself, so that a part of the effects may be committed."""
        if not batch.xid:
            return False
        try:
            with self._watch.during("rollback"):
                return self._transaction.is_replaced(batch.xid)
        except BaseException as error:
            return self._settle_later(batch, error) and self._is_committed(batch)

    def _is_committed(self, batch: ConsumerBatch) -> bool:
        """Asks until PostgreSQL answers: another batch must not be begun before."""
        while not self._assignment.is_abandoned:
            try:
                with self._watch.during("settle"):
                    found = self._transaction.is_committed(batch.xid)
            except BaseException as error:
                self._settle_later(batch, error)
            else:
                if found is not None:
                    return found
                self._assignment.sleep(self._outage.failed())
        return False

    def _give_up(self, batch: ConsumerBatch, failure: blame.Failure, error: BaseException) -> None:
        attempt = blame.BatchAttempt(
            batch.messages if batch.release is None else len(batch.release.rows),
            is_locking=batch.stage.state is Stage.TAKEN,
            is_cancelled=self._is_cancelled,
        )
        self._roll_back()
        action = blame.blame(attempt, failure)
        if isinstance(action, blame.MessageFailed) and batch.form is Form.KEPT:
            action = blame.Wait(action.reason)  # its row could not be written
        if isinstance(action, blame.Smaller):
            logger.info(
                "batch_repeated consumer=%s messages=%d error=%r", self._options.name, batch.messages, action.reason
            )
            if batch.release is None:
                self._assignment.smaller(self._number, batch)
            else:
                self._release_max = max(1, len(batch.release.rows) // 2)
            self._assignment.pause(self._number, self._conflict.failed())
        elif isinstance(action, blame.FindMessage | blame.MessageFailed):
            self._message_failed(batch, action, error)
        else:
            self._act_on_outage(action, batch)
            self._assignment.pause(self._number, self._outage.failed())
        self._dropped(batch)

    def _message_failed(
        self, batch: ConsumerBatch, action: blame.FindMessage | blame.MessageFailed, error: BaseException
    ) -> None:
        if isinstance(error, MessageAtFault) and error.row is not None:
            error.one.known(error.row.mark, error.failed)
        elif isinstance(error, MessageAtFault):
            self._keep_back(error.one, error.message, error.failed)
        elif batch.release is not None:
            self._release_failed(batch, action, error)
        elif isinstance(action, blame.FindMessage):
            self._find_message(batch)
        else:
            one, message = batch.first
            self._calls.log_failed(message, batch.tries, action, error)
            if holding.holds(self._options):
                self._keep_back(one, message, action)
            else:
                self._wait_for(batch, action)

    def _find_message(self, batch: ConsumerBatch) -> None:
        if not holding.holds(self._options) or batch.form is Form.CAREFUL:  # careful: COMMIT has failed
            batch.alone()
        elif self._options.many:
            self._assignment.smaller(self._number, batch)
        else:
            batch.careful()

    def _release_failed(
        self, batch: ConsumerBatch, action: blame.FindMessage | blame.MessageFailed, error: BaseException
    ) -> None:
        """COMMIT has failed, or the message was the only one."""
        if isinstance(action, blame.FindMessage):
            self._release_max = 1
        elif batch.release is not None:
            (one,), row = batch.staying, batch.release.rows[0]
            self._calls.log_failed(row.message, row.tries, action, error)
            one.known(row.mark, action)

    def _keep_back(self, one: AssignedPartition, message: Fetched, failed: blame.MessageFailed) -> None:
        """The next transaction writes its row and calls no function."""
        if not self._calls.is_consumer_failing(one, message, failed):
            one.known(message.offset, failed)

    def _wait_for(self, batch: ConsumerBatch, failed: blame.MessageFailed) -> None:
        """Its partition stays at the message."""
        one, message = batch.first
        found = self._calls.fate(batch.tries, failed)
        if found.pause_s is not None:
            self._assignment.failed(batch, found.attempts, found.delays, found.pause_s)
        else:
            reason = log.failed(one.partition, message.offset, found.attempts, found.error)
            self._assignment.stopped(batch, reason)

    def _roll_back(self) -> None:
        try:
            with self._watch.during("rollback"):
                self._transaction.rollback()
        except Exception:
            self._transaction.close()

    def _asked_in_vain(self, error: BaseException) -> None:
        """Positions were asked for, and no batch is under way."""
        action = blame.blame(blame.BatchAttempt(0, is_locking=True), self._failure(error))
        self._act_on_outage(action)
        self._assignment.pause(self._number, self._outage.failed())

    def _act_on_outage(self, action: blame.Action, batch: ConsumerBatch | None = None) -> None:
        """Raises what ends the consumer."""
        if isinstance(action, blame.StopConsumer):
            raise ConsumerStopped(f"Consumer {self._options.name!r}: {action.reason}. {action.remedy}.")
        if isinstance(action, blame.EndProcess):
            raise ProcessMustEnd(f"Consumer {self._options.name!r} ends the process: {action.reason}")
        if not self._is_away:
            self._is_away = True
            logger.warning("consumer_waits consumer=%s error=%r", self._options.name, action.reason)
        if isinstance(action, blame.Unblock) and batch is not None:
            self._unblock(batch)
        else:
            self._transaction.close()

    def _unblock(self, batch: ConsumerBatch) -> None:
        try:
            self._loads.unblock(batch.partitions)
        except Exception:
            self._transaction.close()

    def _works_again(self) -> None:
        self._outage.worked()
        if self._is_away:
            self._is_away = False
            logger.info("consumer_goes_on consumer=%s", self._options.name)
