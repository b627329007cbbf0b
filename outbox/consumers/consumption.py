"""One consumer in one process: its member of the group, its workers, and the thread that watches over its topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from outbox.consumers.assignment import Assignment
from outbox.consumers.member import ConsumerMember
from outbox.consumers.ports import GroupPort, Handle, PositionsPort, TopicsPort, TransactionPort
from outbox.consumers.topics import Matches, TopicWatch
from outbox.consumers.worker import ConsumerWorker, WorkerPorts
from outbox.core.consumers.partition import Life
from outbox.core.consumers.values import ConsumerOptions, Partition
from outbox.runtime import Runtime
from outbox.runtime.threads import THREADS


class Connect(Protocol):
    """Makes what the threads act through."""

    def positions(self) -> PositionsPort: ...

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
        is_once: bool = False,
        matches: Matches | None = None,
        runtime: Runtime = THREADS,
    ) -> None:
        """`matches`: None if the consumer names all of its topics."""
        self.options = options
        self._assignment = Assignment(runtime, workers=threads, batch=options.batch)
        topics = connect.topics()
        self._workers = [
            ConsumerWorker(
                number,
                options,
                handle,
                self._assignment,
                WorkerPorts(connect.positions(), connect.transaction(), topics),
                runtime=runtime,
                fail=fail,
                is_once=is_once,
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
        self._topics = TopicWatch(options.name, self._assignment, topics, matches=matches, runtime=runtime, fail=fail)

    def start(self) -> None:
        for worker in self._workers:
            worker.start()
        self._member.start()
        self._topics.start()

    def stop(self) -> None:
        """Finish the batches under way, and leave the group. Does not wait."""
        self._topics.stop()
        self._assignment.end()

    def abandon(self) -> None:
        """Leave at once. A batch under way is rolled back, or its successor finds it committed. Does not wait."""
        self._topics.stop()
        self._assignment.abandon()

    def join(self, timeout_s: float) -> bool:
        return self._member.join(timeout_s)

    @property
    def is_complete(self) -> bool:
        """All that was there when partitions were assigned is handled, or cannot be handled now."""
        return self._assignment.is_complete

    @property
    def handled(self) -> int:
        """Messages, for good."""
        return self._assignment.handled

    @property
    def states(self) -> Mapping[Partition, tuple[Life, str]]:
        return self._assignment.states
