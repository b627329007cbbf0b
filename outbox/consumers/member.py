"""A process's member of the consumer's group: polls, hands what was fetched to the workers, and waits for none of them.

It also watches over the time of each call, because it is the thread that nothing keeps waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from outbox.consumers.assignment import Assignment, Stopped
from outbox.consumers.ports import GroupPort
from outbox.consumers.work.watch import FUNCTION, HOOK, Call
from outbox.consumers.work.worker import ConsumerWorker
from outbox.core.consumers.overrun import OVERRUN, is_overrun
from outbox.core.consumers.values import ConsumerOptions
from outbox.runtime import Runtime

logger = logging.getLogger("outbox.consumers")

POLL_S = 0.1
BUSY_POLL_S = 0.01
"""While workers have something to do: what they free is to be fetched soon."""
FULL_POLL_S = 0.05
"""While no worker wants more messages. The client runs the callbacks of a rebalance only when it is polled."""
POLL_MAX = 1_000
COPY_S = 5.0
CANCEL_S = 2.0
"""So long a process that must end waits for the cancellation of what it asks of PostgreSQL."""


class ConsumerMember:
    def __init__(
        self,
        options: ConsumerOptions,
        assignment: Assignment,
        group: GroupPort,
        workers: Sequence[ConsumerWorker],
        *,
        runtime: Runtime,
        fail: Callable[[BaseException], None],
        end_process: Callable[[int], None],
    ) -> None:
        self._options, self._assignment, self._group, self._workers = options, assignment, group, workers
        self._runtime, self._fail, self._end_process = runtime, fail, end_process
        self._copied_at = runtime.monotonic()
        self._failing = ""
        self._leaving = runtime.event()
        self._thread = runtime.thread(self._run, f"outbox-member-{options.name}")

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Wait until the batches under way have ended."""
        self._leaving.wait(self._options.timeout_s)

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._group.join(self._assignment)
            while not self._may_leave():
                self._turn()
            self._leave()
        except BaseException as error:
            self._fail(error)
        finally:
            self._leaving.set()

    def _may_leave(self) -> bool:
        assignment = self._assignment
        is_over = assignment.is_ending and not any(worker.is_alive for worker in self._workers)
        return is_over or assignment.is_abandoned

    def _turn(self) -> None:
        # Not `pause`: the client would drop what it has fetched in advance, and fetch it again up to a second late.
        if self._assignment.wait_for_room(FULL_POLL_S):
            polled = self._group.poll(BUSY_POLL_S if self._assignment.is_busy else POLL_S, POLL_MAX)
        else:
            polled = self._group.poll(0.0, 1)
        self._assignment.received(polled)
        for error in polled.errors:
            if error.partition is None and error.name != self._failing:
                self._failing = error.name
                logger.warning("group_failed consumer=%s code=%s error=%r", self._options.name, error.name, error.text)
        if polled.messages or polled.ends:
            self._failing = ""
        orders = self._assignment.orders()
        if orders.subscribe:
            self._group.subscribe(orders.subscribe)
        if orders.stop:
            self._group.stop(orders.stop)
        if orders.start:
            self._group.start(orders.start)
        if orders.pause:
            self._group.pause(orders.pause)
        if orders.resume:
            self._group.resume(orders.resume)
        self._tell()
        now = self._runtime.monotonic()
        if orders.start or now >= self._copied_at + COPY_S:
            # At once when reading begins: who finds no row later knows by the copy that there was one.
            self._copy(now)
        self._watch()

    def _copy(self, now: float) -> None:
        self._copied_at = now
        if copies := self._assignment.copies():
            self._group.commit_copy(copies)

    def _tell(self) -> None:
        for new in self._assignment.news():
            if isinstance(new, Stopped):
                logger.error(
                    "partition_stopped consumer=%s topic=%s partition=%d reason=%r",
                    self._options.name,
                    *new.partition,
                    new.reason,
                )
            elif new.error.partition is not None:
                logger.warning(
                    "partition_failing consumer=%s topic=%s partition=%d code=%s error=%r",
                    self._options.name,
                    *new.error.partition,
                    new.error.name,
                    new.error.text,
                )

    def _watch(self) -> None:
        """The process ends when a function or PostgreSQL takes too long: its successor treats that as a crash of the
        message."""
        for worker in self._workers:
            call = worker.call
            if call is None or not is_overrun(took_s := self._runtime.monotonic() - call.began_at, call.limit_s):
                continue
            self._log_overrun(call, took_s, worker.stack())
            cancel = self._runtime.thread(worker.cancel, f"outbox-cancel-{self._options.name}")
            cancel.start()
            cancel.join(CANCEL_S)
            self._end_process(OVERRUN)

    def _log_overrun(self, call: Call, took_s: float, stack: str) -> None:
        if call.name in (FUNCTION, HOOK):
            logger.error(
                "function_overrun consumer=%s after_s=%.1f limit_s=%g stack=%r",
                self._options.name,
                took_s,
                call.limit_s,
                stack,
            )
        else:
            logger.error(
                "database_overrun consumer=%s call=%s after_s=%.1f limit_s=%g stack=%r",
                self._options.name,
                call.name,
                took_s,
                call.limit_s,
                stack,
            )

    def _leave(self) -> None:
        self._leaving.set()
        self._tell()
        self._copy(self._runtime.monotonic())
        self._group.close()
