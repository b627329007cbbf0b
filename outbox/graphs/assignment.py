"""The lanes that the group has assigned to this process, of one processor.

The member's thread tells of assignments and hands over what it has fetched; each lane has a worker with a thread of its
own. All of them share one lock, and nothing else is waited for or logged under it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

from outbox.core.consumers.values import Fetched, Partition, Polled
from outbox.core.graphs.lane import LaneLife
from outbox.core.graphs.values import Processor
from outbox.graphs.lane_worker import GraphLaneWorker
from outbox.runtime import Condition

REVOKE_S = 3.0
"""So long a rebalance waits for batches under way. After that the successor fences them."""
_PARTITION = itemgetter(0, 1)
_MOVED = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "_LOG_TRUNCATION"})
"""What the client reports instead of reading from a position that is not there."""


@dataclass(frozen=True, slots=True)
class GraphOrders:
    """For the client, in this order."""

    start: Mapping[Partition, int] = field(default_factory=dict)
    pause: Sequence[Partition] = ()
    resume: Sequence[Partition] = ()


class GraphAssignment:
    """A `GroupListener`."""

    def __init__(self, processor: Processor, changed: Condition, worker: Callable[[int], GraphLaneWorker]) -> None:
        self._processor, self._changed, self._make = processor, changed, worker
        self._workers: dict[int, GraphLaneWorker] = {}
        self._ending: list[GraphLaneWorker] = []
        self._reading: set[Partition] = set()
        self._paused: set[Partition] = set()
        self._is_ending = False
        self._delivered = 0

    # ---- the member's thread

    def assigned(self, partitions: Sequence[Partition]) -> None:
        """A lane begins when all of its topics are here: the group gives equal numbers to one member."""
        found: dict[int, set[str]] = {}
        for partition in partitions:
            found.setdefault(partition.number, set()).add(partition.topic)
        with self._changed:
            for number, topics in sorted(found.items()):
                if topics.issuperset(self._processor.topics) and not self._is_ending:
                    worker = self._workers[number] = self._make(number)
                    worker.start()

    def revoked(self, partitions: Sequence[Partition]) -> None:
        """Waits for what is under way, for a while."""
        with self._changed:
            ending = [self._workers.pop(number) for number in {one.number for one in partitions} & self._workers.keys()]
            self._forget(partitions)
            for worker in ending:
                worker.end()
            self._changed.notify_all()
            self._changed.wait_for(lambda: all(map(_has_ended, ending)), REVOKE_S)
            for worker in ending:
                worker.end(is_abandoned=True)
                self._delivered += worker.delivered
            self._ending = [*(one for one in self._ending if one.is_alive), *ending]

    def _forget(self, partitions: Sequence[Partition]) -> None:
        self._reading.difference_update(partitions)
        self._paused.difference_update(partitions)

    def received(self, polled: Polled) -> None:
        with self._changed:
            for key, run in groupby(polled.messages, _PARTITION):
                self._receive(Partition(*key), list(run))
            for error in polled.errors:
                worker = None if error.partition is None else self._workers.get(error.partition.number)
                if worker is not None and error.name in _MOVED:
                    worker.doubt()
            if polled.messages or polled.errors:
                self._changed.notify_all()

    def _receive(self, partition: Partition, messages: list[Fetched]) -> None:
        worker = self._workers.get(partition.number)
        # What was fetched before the client was told to read from elsewhere says nothing about what lies between.
        if worker is not None and partition in self._reading and worker.read_from is None:
            worker.lane.inputs.received(messages)

    def orders(self) -> GraphOrders:
        with self._changed:
            start: dict[Partition, int] = {}
            for number, worker in self._workers.items():
                for topic, at in (worker.order() or {}).items():
                    start[Partition(topic, number)] = at
            self._reading.update(start)
            full = {
                Partition(topic, number)
                for number, worker in self._workers.items()
                for topic in worker.lane.inputs.full
            } & self._reading
            pause, resume = full - self._paused, self._paused - full
            if start:  # the client keeps a partition paused that was taken back meanwhile, or assigned once more
                pause, resume = full, self._reading - full
            self._paused = full
            return GraphOrders(start, sorted(pause), sorted(resume))

    # ---- for whoever runs the processor

    def end(self, *, is_abandoned: bool = False) -> None:
        with self._changed:
            self._is_ending = True
            for worker in (*self._workers.values(), *self._ending):
                worker.end(is_abandoned=is_abandoned)
            self._changed.notify_all()

    @property
    def is_over(self) -> bool:
        """It is to end, and no lane is at work."""
        with self._changed:
            return self._is_ending and all(map(_has_ended, (*self._workers.values(), *self._ending)))

    @property
    def is_ending(self) -> bool:
        return self._is_ending

    @property
    def states(self) -> Mapping[int, tuple[LaneLife, str]]:
        with self._changed:
            return {number: (one.lane.life.state, one.lane.reason) for number, one in self._workers.items()}

    @property
    def positions(self) -> Mapping[int, Mapping[str, int]]:
        """Of each lane that is placed."""
        with self._changed:
            return {
                number: dict(one.lane.positions)
                for number, one in self._workers.items()
                if one.lane.life.state is LaneLife.PLACED
            }

    @property
    def delivered(self) -> int:
        """Steps, by this process."""
        with self._changed:
            return self._delivered + sum(worker.delivered for worker in self._workers.values())


def _has_ended(worker: GraphLaneWorker) -> bool:
    return worker.lane.life.state is LaneLife.ENDED
