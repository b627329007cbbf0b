"""One processor in one process: its member of the group, which polls and waits for no function, and its lanes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from outbox.core.graphs.lane import LaneLife
from outbox.core.graphs.outputs import OutputMaker
from outbox.core.graphs.values import Processor, owner_of
from outbox.graphs.assignment import GraphAssignment
from outbox.graphs.lane_worker import GraphLaneWorker, LaneOptions
from outbox.graphs.ports import LaneGroupPort, LaneKafkaPort, StepsPort
from outbox.runtime import Lock, Runtime
from outbox.runtime.threads import THREADS

logger = logging.getLogger("outbox.graphs")

POLL_S = 0.05
POLL_MAX = 2_000


class ConnectLanes(Protocol):
    """Makes what the threads of one processor act through."""

    def kafka(self) -> LaneKafkaPort: ...

    def group(self) -> LaneGroupPort: ...


class Processing:
    def __init__(
        self,
        processor: Processor,
        options: LaneOptions,
        maker: OutputMaker,
        steps: StepsPort,
        connect: ConnectLanes,
        careful_turn: Lock,
        *,
        fail: Callable[[BaseException], None],
        runtime: Runtime = THREADS,
    ) -> None:
        """`careful_turn` is one for all processors of the process."""
        self.processor, self._fail = processor, fail
        self._group = connect.group()
        self._kafka = kafka = connect.kafka()
        changed = runtime.condition("graph")

        def worker(partition: int) -> GraphLaneWorker:
            return GraphLaneWorker(
                processor,
                partition,
                options,
                maker,
                steps,
                kafka,
                self._group.metadata,
                changed,
                careful_turn,
                runtime=runtime,
                fail=fail,
            )

        self._assignment = GraphAssignment(processor, changed, worker)
        self._failing = ""
        self._name = owner_of(options.graph, processor.name)
        self._thread = runtime.thread(self._run, f"outbox-graph-member-{self._name}")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finish the batches under way, and leave the group. Does not wait."""
        self._assignment.end()

    def abandon(self) -> None:
        """Give up what is under way, and leave the group. Does not wait."""
        self._assignment.end(is_abandoned=True)

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def states(self) -> Mapping[int, tuple[LaneLife, str]]:
        return self._assignment.states

    @property
    def positions(self) -> Mapping[int, Mapping[str, int]]:
        return self._assignment.positions

    @property
    def delivered(self) -> int:
        return self._assignment.delivered

    # ---- the member's thread

    def _run(self) -> None:
        try:
            self._group.join(self._assignment)
            while not self._assignment.is_over:
                self._turn()
            self._group.close()
        except BaseException as error:
            self._fail(error)
        finally:
            self._kafka.close()

    def _turn(self) -> None:
        polled = self._group.poll(POLL_S, POLL_MAX)
        self._assignment.received(polled)
        for error in polled.errors:
            if error.name != self._failing:
                self._failing = error.name
                logger.warning("graph_group_failed processor=%s code=%s error=%r", self._name, error.name, error.text)
        if polled.messages:
            self._failing = ""
        orders = self._assignment.orders()
        if orders.start:
            self._group.read_from(orders.start)
        if orders.pause:
            self._group.pause(orders.pause)
        if orders.resume:
            self._group.resume(orders.resume)
