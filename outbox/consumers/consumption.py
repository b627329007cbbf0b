"""One consumer in one process: its member of the group, its workers, and the thread that watches over its topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from outbox.consumers.assignment import Assignment
from outbox.consumers.counts import Counted
from outbox.consumers.member import ConsumerMember
from outbox.consumers.once import Ends
from outbox.consumers.ports import (
    GroupPort,
    Handle,
    HeldPort,
    LeavesOut,
    OwnersPort,
    PositionsPort,
    SeenPort,
    TopicsPort,
    TransactionPort,
)
from outbox.consumers.topics import Matches, TopicWatch
from outbox.consumers.work.worker import ConsumerWorker, WorkerPorts
from outbox.core.consumers.partition import Life
from outbox.core.consumers.shown import Observed
from outbox.core.consumers.values import ConsumerOptions, Fetched, Partition
from outbox.runtime import Lock, Runtime
from outbox.runtime.threads import THREADS


class Connect(Protocol):
    """Makes what the threads act through."""

    def positions(self) -> PositionsPort: ...

    def held(self) -> HeldPort: ...

    def owners(self) -> OwnersPort: ...

    def seen(self) -> SeenPort: ...

    def transaction(self) -> TransactionPort:
        """For one worker: it owns a connection."""
        ...

    def group(self) -> GroupPort: ...

    def topics(self) -> TopicsPort: ...


class Consumption:
    def __init__(
        self,
        options: ConsumerOptions,
        handle: Handle,
        connect: Connect,
        *,
        threads: int,
        fail: Callable[[BaseException], None],
        end_process: Callable[[int], None],
        once: bool = False,
        topics: Sequence[str] = (),
        matches: Matches | None = None,
        identify: Callable[[Fetched], str] | None = None,
        leaves_out: LeavesOut | None = None,
        ends: Mapping[Partition, int] | None = None,
        recording: Lock | None = None,
        runtime: Runtime = THREADS,
    ) -> None:
        """`topics` are those that the consumer names; `matches`: None if it names all of them. With `once` it is known
        when all that is there at the start is handled; `ends`: when these offsets are reached. The consumers of a
        process share the lock `recording`."""
        self.options = options
        self._assignment = Assignment(
            runtime, workers=threads, batch=options.batch, remedy=options.remedy, recording=recording
        )
        metadata = connect.topics()
        self._workers = [
            ConsumerWorker(
                number,
                options,
                handle,
                self._assignment,
                WorkerPorts(
                    connect.positions(),
                    connect.held(),
                    connect.owners(),
                    connect.seen(),
                    connect.transaction(),
                    metadata,
                ),
                runtime=runtime,
                fail=fail,
                identify=identify,
                leaves_out=leaves_out,
            )
            for number in range(threads)
        ]
        self._member = ConsumerMember(
            options,
            self._assignment,
            connect.group(),
            self._workers,
            runtime=runtime,
            fail=fail,
            end_process=end_process,
        )
        self._topics = TopicWatch(options.name, self._assignment, metadata, matches=matches, runtime=runtime, fail=fail)
        self._ends = (
            Ends(
                options.name,
                topics,
                self._assignment,
                (connect.positions(), connect.transaction(), metadata),
                matches=matches,
                ends=ends,
                runtime=runtime,
                fail=fail,
            )
            if once
            else None
        )

    def start(self) -> None:
        for worker in self._workers:
            worker.start()
        self._member.start()
        self._topics.start()
        if self._ends is not None:
            self._ends.start()

    def stop(self) -> None:
        """Finish the batches under way, and leave the group. Does not wait."""
        self._stop_asking()
        self._assignment.end()

    def abandon(self) -> None:
        """Leave at once. A batch under way is rolled back, or its successor finds it committed. Does not wait."""
        self._stop_asking()
        self._assignment.abandon()

    def _stop_asking(self) -> None:
        self._topics.stop()
        if self._ends is not None:
            self._ends.stop()

    def finish(self) -> None:
        """Wait until the batches under way have ended."""
        self._member.finish()

    def join(self, timeout_s: float) -> bool:
        return self._member.join(timeout_s)

    @property
    def name(self) -> str:
        return self.options.name

    @property
    def is_complete(self) -> bool:
        """With `once`: all that was there at the start is handled, whichever process has handled it, or an operator has
        to decide about partitions of this process."""
        return self._ends is not None and self._ends.is_complete and self._assignment.knows_held

    @property
    def handled(self) -> int:
        """Messages, for good."""
        return self._assignment.handled

    @property
    def partitions_with_held(self) -> Sequence[Partition]:
        """Those of which messages are held."""
        return self._assignment.partitions_with_held

    @property
    def failing(self) -> str:
        """Why every message fails; empty: they do not."""
        return self._assignment.failing

    @property
    def states(self) -> Mapping[Partition, tuple[Life, str]]:
        return self._assignment.states

    @property
    def observed(self) -> Sequence[Observed]:
        """Each partition, as it is shown to people."""
        return self._assignment.observed

    @property
    def counted(self) -> Counted:
        return self._assignment.counted

    @property
    def is_waiting(self) -> bool:
        """Whether a worker waits for a server."""
        return any(worker.is_waiting for worker in self._workers)
