"""Calls the user's function with the messages of a batch, inside of its transaction.

A plain batch is handled or fails as a whole. In a careful one each message has a savepoint of its own: what the
function did with a message that fails is rolled back, and the message is kept for later.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from traceback import clear_frames
from typing import Any

from outbox.consumers.assignment import Assignment
from outbox.consumers.ports import Handle, TransactionPort
from outbox.consumers.work.dedupe import Dedupe
from outbox.consumers.work.watch import FUNCTION, CallWatch
from outbox.core.consumers import blame, holding
from outbox.core.consumers.batch import ConsumerBatch
from outbox.core.consumers.blame import MessageFailed
from outbox.core.consumers.failing import FIRST_S
from outbox.core.consumers.holding import Fate, StoredMessage, Tries
from outbox.core.consumers.partition import AssignedPartition, Form
from outbox.core.consumers.values import ConsumerOptions, Fetched
from outbox.failpoints import failpoint
from outbox.runtime import Runtime

logger = logging.getLogger("outbox.consumers")


class Refusal(Exception):
    """A transaction that must not be committed, although nothing was raised in it."""

    def __init__(self, failure: blame.Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class MessageAtFault(Exception):
    """The message has made the transaction useless, with all that was done in it."""

    def __init__(
        self, one: AssignedPartition, message: Fetched, failed: MessageFailed, row: StoredMessage | None = None
    ) -> None:
        """`row`: it was held."""
        super().__init__(failed.reason)
        self.one, self.message, self.failed, self.row = one, message, failed, row


class Calls:
    """Of one worker."""

    def __init__(
        self,
        number: int,
        options: ConsumerOptions,
        function: Handle,
        assignment: Assignment,
        transaction: TransactionPort,
        watch: CallWatch,
        runtime: Runtime,
        dedupe: Dedupe | None = None,
    ) -> None:
        self._dedupe = dedupe
        self._number, self._options = number, options
        self._function, self._assignment = function, assignment
        self._transaction, self._watch, self._runtime = transaction, watch, runtime

    def run(self, connection: Any, batch: ConsumerBatch) -> None:
        until = self._runtime.monotonic() + self._options.transaction_max_s
        if batch.form is Form.KEPT:
            self._keep(batch)
        elif batch.release is not None:
            self._release(connection, batch, until)
        elif batch.form is Form.CAREFUL and not self._options.many:
            self._careful(connection, batch, until)
        else:
            self._plain(connection, batch)

    def _call(self, messages: Sequence[Fetched], attempt: int, now: float) -> None:
        self._watch.begin(FUNCTION, self._options.timeout_s, now)
        try:
            self._function(messages, attempt)
        finally:
            self._watch.end()

    # ---- each form of a batch

    def _plain(self, connection: Any, batch: ConsumerBatch) -> None:
        attempt, is_first = batch.tries.attempts + 1, True
        function, handled, monotonic = self._function, batch.handled, self._runtime.monotonic
        try:
            if self._dedupe is not None:
                self._dedupe.begin(connection, batch)
            now = monotonic()
            until = now + self._options.transaction_max_s
            again = self._watch.begin(FUNCTION, self._options.timeout_s, now).again
            for counts, messages in batch.calls(many=self._options.many):
                if (now := monotonic()) >= until and not is_first:
                    break
                again(now)
                function(messages, attempt)
                handled(counts)
                if is_first:
                    failpoint("batch-begun")
                    is_first = False
            if self._dedupe is not None:
                self._dedupe.end(connection, batch)
        except BaseException:
            batch.raised()
            raise
        finally:
            self._watch.end()

    def _careful(self, connection: Any, batch: ConsumerBatch, until: float) -> None:
        for counts, messages in batch.calls(many=False):
            if self._runtime.monotonic() >= until:
                break
            ((one, _),) = counts.items()
            message = messages[0]
            if (failed := self._try(connection, one, message)) is None:
                batch.handled(counts)
                failpoint("batch-begun")
                continue
            if self.is_consumer_failing(one, message, failed):
                batch.give_back(FIRST_S)
                break
            found = self.fate(Tries(), failed)
            batch.keep(one, message, found, is_left_out=holding.is_dead(self._options, found))

    def _release(self, connection: Any, batch: ConsumerBatch, until: float) -> None:
        release, (one,) = batch.release, batch.staying
        assert release is not None
        for row in release.rows:
            if self._runtime.monotonic() >= until:
                break
            if release.is_blocked(row):
                continue
            if (failed := one.known_of(row.mark)) is None:
                failed = self._try(connection, one, row.message, row)
            if failed is None:
                release.handled(row)
            else:
                self._failed_again(batch, row, failed)

    def _failed_again(self, batch: ConsumerBatch, row: StoredMessage, failed: MessageFailed) -> None:
        release = batch.release
        assert release is not None
        found = self.fate(row.tries, failed)
        if self._assignment.failing and found.reason == holding.FAILED:
            self._assignment.tried_in_vain()
            found = replace(found, attempts=row.tries.attempts, pause_s=holding.BACKOFF_MAX_S / 2)
        release.failed(row, found, leaves=holding.is_dead(self._options, found))

    def _keep(self, batch: ConsumerBatch) -> None:
        """It has failed before, and a transaction with it."""
        one, message = batch.first
        failed = one.known_of(message.offset)
        assert failed is not None
        for _ in batch.calls(many=False):  # unless it waits behind another one
            found = self.fate(Tries(), failed)
            batch.keep(one, message, found, is_left_out=holding.is_dead(self._options, found))

    # ---- one message

    def _try(
        self, connection: Any, one: AssignedPartition, message: Fetched, row: StoredMessage | None = None
    ) -> MessageFailed | None:
        """None: it is handled. `row`: it was held."""
        transaction, tries = self._transaction, Tries() if row is None else row.tries
        with self._watch.during("mark"):
            transaction.mark()
        try:
            is_new = self._dedupe is None or self._dedupe.is_new(connection, message)
            if is_new:
                self._call((message,), tries.attempts + 1, self._runtime.monotonic())
            with self._watch.during("keep"):
                if problem := transaction.keep():
                    raise Refusal(blame.Untrusted(problem))
        except BaseException as error:
            failed = self._failed(error)
            if failed is None:
                raise
            self.log_failed(message, tries, failed, error)
            forget_frames(error)
            self._undo(MessageAtFault(one, message, failed, row))
            return failed
        if is_new and self._assignment.message_handled():
            logger.info("consumer_goes_on consumer=%s", self._options.name)
        return None

    def _failed(self, error: BaseException) -> MessageFailed | None:
        """None: the message is not to blame."""
        if isinstance(error, Refusal):
            failure = error.failure
        else:
            failure = self._transaction.failure(error, is_of_function=True)
        action = blame.blame(blame.BatchAttempt(1), failure)
        return action if isinstance(action, MessageFailed) else None

    def _undo(self, found: MessageAtFault) -> None:
        """Raises it if the transaction is lost."""
        with self._watch.during("undo"):
            is_undone = self._transaction.undo()
        if not is_undone:
            raise found

    # ---- what becomes of one that has failed

    def log_failed(self, message: Fetched, tries: Tries, failed: MessageFailed, error: BaseException) -> None:
        if holding.is_postponed(tries, failed):
            logger.debug(
                "message_postponed consumer=%s topic=%s partition=%d offset=%d reason=%r",
                self._options.name,
                message.topic,
                message.partition,
                message.offset,
                failed.reason,
            )
            return
        self._assignment.attempt_failed(self._number)
        is_first = not tries.attempts and not isinstance(error, Refusal)
        logger.warning(
            "message_failed consumer=%s topic=%s partition=%d offset=%d attempt=%d error=%r",
            self._options.name,
            message.topic,
            message.partition,
            message.offset,
            tries.attempts + 1,
            failed.reason,
            exc_info=error if is_first else None,
        )

    def fate(self, tries: Tries, failed: MessageFailed) -> Fate:
        return holding.fate(self._options, tries, failed, self._runtime.random())

    def is_consumer_failing(self, one: AssignedPartition, message: Fetched, failed: MessageFailed) -> bool:
        """`failed` is the first attempt of the message."""
        if failed.is_poison or holding.is_postponed(Tries(), failed):
            return False
        was_failing = bool(self._assignment.failing)
        if not self._assignment.message_failed(one.partition, message.key, failed.reason):
            return False
        if not was_failing:
            logger.error(
                "consumer_failing consumer=%s topic=%s partition=%d offset=%d error=%r",
                self._options.name,
                *one.partition,
                message.offset,
                failed.reason,
            )
        self._assignment.tried_in_vain()
        return True


def forget_frames(error: BaseException | None) -> None:
    """A server-side cursor that a local variable of the function holds must be closed before its savepoint is gone."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
