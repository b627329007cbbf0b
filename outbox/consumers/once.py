"""Whether `once` is done: every partition of the consumer's topics has reached the end that it had at the start.

Other processes may have some of the partitions. So the rows of the positions are compared with these ends, whoever
moves them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from outbox.consumers.assignment import Assignment
from outbox.consumers.ports import PositionsPort, TopicsPort, TransactionPort
from outbox.consumers.topics import Matches
from outbox.core.consumers import blame, log
from outbox.core.consumers.values import Partition
from outbox.exceptions import NotAvailable
from outbox.runtime import Runtime, Thread

ASK_S = 0.5
COPY_STANDS_S = 12.0
"""Another owner copies its position when it begins to read, and every 5 s. A copy that stands so long is its own."""


class Ends:
    """A thread with a connection of its own."""

    def __init__(
        self,
        name: str,
        topics: Sequence[str],
        assignment: Assignment,
        servers: tuple[PositionsPort, TransactionPort, TopicsPort],
        *,
        matches: Matches | None,
        runtime: Runtime,
        fail: Callable[[BaseException], None],
        ends: Mapping[Partition, int] | None = None,
    ) -> None:
        """`topics` are those that the consumer names; `matches` finds more. `ends`: in place of those of the start."""
        self._name, self._names, self._matches, self._assignment = name, topics, matches, assignment
        self._positions, self._transaction, self._topics = servers
        self._runtime, self._fail = runtime, fail
        self._ending = runtime.event()
        self._left: dict[Partition, int] | None = None if ends is None else dict(ends)
        """The ends that are not reached yet; None: they are not known yet."""
        self._copied_since: dict[Partition, float] = {}
        self._thread: Thread = runtime.thread(self._run, f"outbox-ends-{name}")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()

    @property
    def is_complete(self) -> bool:
        """Each end is reached, or an operator has to decide about the partition."""
        left = self._left
        return left is not None and self._assignment.stopped_partitions.issuperset(left)

    def _run(self) -> None:
        try:
            while not self._ending.wait(ASK_S):
                self._try()
        except BaseException as error:
            self._fail(error)
        finally:
            self._transaction.close()

    def _try(self) -> None:
        try:
            self._ask()
        except NotAvailable:
            return  # the workers log it
        except Exception as error:
            failure = self._transaction.failure(error)
            if not isinstance(failure, blame.Disconnected | blame.StatementRefused):
                raise
            self._transaction.close()

    def _ask(self) -> None:
        if self._left is None:
            self._left = self._ends()
        left = dict(self._left)
        for partition, is_reached in self._assignment.reached(left).items():
            if is_reached:
                del left[partition]
        others = [partition for partition in left if not self._assignment.has(partition)]
        for partition in set(self._copied_since).difference(others):
            del self._copied_since[partition]
        if others:
            ids = self._topics.ids(sorted({partition.topic for partition in others}))
            copies = self._topics.copies(others)
            rows = self._positions.load(self._transaction.connection(), self._name, others)
            for partition in others:
                row = rows.get(partition)
                if row is None or partition.topic not in ids or log.other_topic(partition, row, ids[partition.topic]):
                    continue
                if row.next >= left[partition] or self._is_copied(partition, copies.get(partition, -1)):
                    del left[partition]
        self._left = left

    def _is_copied(self, partition: Partition, copy: int) -> bool:
        """Kafka's own offset is behind marks of transactions at the end, which are no messages."""
        assert self._left is not None
        now = self._runtime.monotonic()
        if copy < self._left[partition]:
            self._copied_since[partition] = float("-inf")  # what is copied from now on is new
            return False
        return now >= self._copied_since.setdefault(partition, now) + COPY_STANDS_S

    def _ends(self) -> dict[Partition, int]:
        topics = set(self._names)
        if self._matches is not None:
            topics.update(filter(self._matches, self._topics.names()))
        partitions = [
            Partition(topic, number)
            for topic in self._topics.ids(sorted(topics))
            for number in range(self._topics.partitions(topic))
        ]
        return {partition: self._topics.bounds(partition)[1] for partition in partitions}
