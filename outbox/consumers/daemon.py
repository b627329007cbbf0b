"""The daemon of `manage.py consume`: runs consumers between `start` and `stop`."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from outbox.consumers.consumption import Connect, Consumption
from outbox.consumers.counts import Counted
from outbox.consumers.observer import Observer, RowsPort
from outbox.consumers.ports import Handle, LeavesOut
from outbox.consumers.topics import Matches
from outbox.core.consumers import log
from outbox.core.consumers.partition import Life
from outbox.core.consumers.shown import MessageCounts, ShownPartition
from outbox.core.consumers.values import ConsumerOptions, Fetched, Partition
from outbox.exceptions import OutboxError
from outbox.runtime.threads import THREADS
from outbox.service.lifecycle import Daemon, State

logger = logging.getLogger("outbox.consumers")

_POLL_S = 0.1
LEAVE_TIMEOUT_S = 10.0
"""A client that is being closed waits up to a minute for a broker that does not answer."""


class LeftBehind(OutboxError):
    """`once` has ended, and partitions were stopped before their end, or messages are held."""


@dataclass(frozen=True, slots=True)
class Run:
    """One consumer to be run."""

    options: ConsumerOptions
    handle: Handle
    connect: Connect
    rows: RowsPort
    """Where its partitions are shown."""
    topics: Sequence[str] = ()
    """Those that the consumer names."""
    matches: Matches | None = None
    """None: the consumer names all of its topics."""
    identify: Callable[[Fetched], str] | None = None
    """Returns the id by which a repeated message is known. None: no message is left out."""
    leaves_out: LeavesOut | None = None
    ends: Mapping[Partition, int] | None = None
    """With `once`: the offsets to be reached, in place of those that Kafka has at the start."""


class Consumers(Daemon):
    """Every method is thread-safe."""

    def __init__(
        self,
        runs: Sequence[Run],
        *,
        threads: int = 1,
        once: bool = False,
        prepare: Callable[[], None] = lambda: None,
        end_process: Callable[[int], None] = os._exit,
        fail_fast: bool = False,
    ) -> None:
        """`threads` are the workers of each consumer. With `once` it stops when every partition of the topics has
        reached the end that it had at the start, whichever process has it. `prepare` raises `NotAvailable` while a
        server does not answer; with `fail_fast` that is an error."""
        super().__init__("consumer", thread="outbox-consumers", logger=logger, fail_fast=fail_fast)
        self._once, self._prepare = once, prepare
        recording = threading.Lock()
        self._consumptions = [
            Consumption(
                run.options,
                run.handle,
                run.connect,
                threads=threads,
                fail=self.fail,
                end_process=end_process,
                once=once,
                topics=run.topics,
                matches=run.matches,
                identify=run.identify,
                leaves_out=run.leaves_out,
                ends=run.ends,
                recording=recording,
            )
            for run in runs
        ]
        self._started: list[Consumption] = []
        self.is_complete = False
        """With `once`: everything is handled."""
        self._observer = Observer(
            [(consumption, run.rows) for consumption, run in zip(self._consumptions, runs, strict=True)],
            runs[0].connect.topics(),
        )

    # ---- what is going on

    @property
    def handled(self) -> Mapping[str, int]:
        """Messages of each consumer, for good."""
        return {consumption.options.name: consumption.handled for consumption in self._consumptions}

    @property
    def partitions(self) -> Mapping[str, Mapping[Partition, tuple[Life, str]]]:
        """Of each consumer the partitions that this process has, and why they are stopped."""
        return {consumption.options.name: consumption.states for consumption in self._consumptions}

    @property
    def seen(self) -> Mapping[str, Sequence[ShownPartition]]:
        """Of each consumer, its partitions as they were observed last: every few seconds."""
        return self._observer.seen

    @property
    def held(self) -> Mapping[str, MessageCounts]:
        """Of consumers with partitions in this process: how many messages are held, by all processes. As `seen`."""
        return self._observer.held

    @property
    def with_held(self) -> Mapping[str, Collection[Partition]]:
        """Of each consumer, partitions of this process of which messages are held."""
        return {consumption.options.name: consumption.partitions_with_held for consumption in self._consumptions}

    @property
    def seen_age_s(self) -> float | None:
        """How long ago Kafka has answered where the partitions end. None: it has not yet."""
        return self._observer.age_s

    @property
    def counted(self) -> Mapping[str, Counted]:
        return {consumption.options.name: consumption.counted for consumption in self._consumptions}

    @property
    def failing(self) -> Mapping[str, str]:
        """Why every message of a consumer fails; empty: they do not."""
        return {consumption.options.name: consumption.failing for consumption in self._consumptions}

    @property
    def is_waiting(self) -> Mapping[str, bool]:
        """Whether each consumer waits for a server."""
        for_all = bool(self.waiting_for) or self._observer.is_waiting
        return {consumption.options.name: for_all or consumption.is_waiting for consumption in self._consumptions}

    @property
    def is_ready(self) -> bool:
        return self._state is State.RUNNING and not self.waiting_for

    # ---- the supervising thread

    def _work(self) -> None:
        if not self._until_available(self._prepared):
            return
        for consumption in self._consumptions:
            consumption.start()
            self._started.append(consumption)
        self._observer.start()
        while not self._stopping.wait(_POLL_S):
            if self._once and all(consumption.is_complete for consumption in self._consumptions):
                self._end_once()
                self.is_complete = True
                return

    def _prepared(self) -> bool:
        self._prepare()
        return True

    def _end_once(self) -> None:
        reasons = [
            reason
            for partitions in self.partitions.values()
            for state, reason in partitions.values()
            if state is Life.STOPPED
        ]
        reasons += [
            f"{consumption.options.name}: messages of {', '.join(map(log.named, held))} are held"
            for consumption in self._consumptions
            if (held := consumption.partitions_with_held)
        ]
        if reasons:
            raise LeftBehind("; ".join(reasons))

    def _tear_down(self) -> None:
        self._observer.stop()
        for consumption in self._started:
            consumption.stop()
        for consumption in self._started:
            consumption.finish()
        give_up_at = THREADS.monotonic() + LEAVE_TIMEOUT_S
        for consumption in self._started:
            if not consumption.join(max(0.0, give_up_at - THREADS.monotonic())):
                self._logger.warning("consumer_left_behind consumer=%s", consumption.options.name)

    def _abandon(self) -> None:
        for consumption in self._consumptions:
            consumption.abandon()

    def _log_state(self, state: State) -> None:
        names = ", ".join(consumption.options.name for consumption in self._consumptions)
        if state is State.RUNNING:
            self._logger.info("consumers_started consumers=%r", names)
        elif state is State.STOPPING:
            self._logger.info("consumers_stopping consumers=%r", names)
        else:
            self._logger.info("consumers_stopped consumers=%r", names)

    def _log_failure(self, error: BaseException) -> None:
        known = isinstance(error, OutboxError)
        self._logger.error("consumers_failed reason=%r", str(error), exc_info=None if known else error)
