"""The daemon of `manage.py outbox_graph run`: runs the processors of a graph, and its sinks, from `start` to `stop`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outbox.consumers.daemon import Consumers
from outbox.core.graphs.lane import LaneLife
from outbox.graphs.processing import Processing
from outbox.runtime.threads import THREADS
from outbox.service.lifecycle import Daemon, State

logger = logging.getLogger("outbox.graphs")

_POLL_S = 0.1
LEAVE_TIMEOUT_S = 20.0
"""So long the batches under way may take, and then the clients, which wait for brokers that do not answer."""

Make = Callable[[Callable[[BaseException], None]], Sequence[Processing]]


class GraphDaemon(Daemon):
    """Every method is thread-safe."""

    def __init__(
        self,
        name: str,
        make: Make,
        *,
        sinks: Consumers | None = None,
        prepare: Callable[[], bool] = lambda: True,
        fail_fast: bool = False,
    ) -> None:
        """`make` gets what is to be called with the error of a thread. `prepare` raises `NotAvailable` while a server
        does not answer; with `fail_fast` that is an error."""
        super().__init__("graph", thread="outbox-graph", logger=logger, fail_fast=fail_fast)
        self.name, self._prepare, self._sinks = name, prepare, sinks
        self._processings = list(make(self.fail))
        self._started: list[Processing] = []

    @property
    def state_of_all(self) -> dict[str, Any]:
        """What can be written as JSON."""
        return {
            "graph": self.name,
            "state": str(self.state),
            "waiting_for": self.waiting_for,
            "processors": {one.processor.name: self._state_of(one) for one in self._processings},
            "sinks": dict(self._sinks.handled) if self._sinks is not None else {},
        }

    @staticmethod
    def _state_of(one: Processing) -> dict[str, Any]:
        positions = one.positions
        return {
            "steps": one.delivered,
            "lanes": {
                number: {"state": life.value, "reason": reason, "positions": positions.get(number, {})}
                for number, (life, reason) in one.states.items()
            },
        }

    @property
    def steps(self) -> Mapping[str, int]:
        """Those of each processor, by this process."""
        return {one.processor.name: one.delivered for one in self._processings}

    @property
    def lanes(self) -> Mapping[str, Mapping[int, tuple[LaneLife, str]]]:
        return {one.processor.name: one.states for one in self._processings}

    # ---- the supervising thread

    def _work(self) -> None:
        if not self._until_available(self._prepare):
            return
        for processing in self._processings:
            processing.start()
            self._started.append(processing)
        if self._sinks is not None:
            self._sinks.start()
        while not self._stopping.wait(_POLL_S):
            if self._sinks is not None and self._sinks.state is State.STOPPED:
                self._sinks.wait(0)  # raises what it failed for
                return

    def _tear_down(self) -> None:
        if self._sinks is not None:
            self._sinks.stop()
        for processing in self._started:
            processing.stop()
        give_up_at = THREADS.monotonic() + LEAVE_TIMEOUT_S
        for processing in self._started:
            if not processing.join(max(0.0, give_up_at - THREADS.monotonic())):
                self._logger.warning("graph_left_behind processor=%s", processing.processor.name)
        if self._sinks is not None:
            self._sinks.wait(max(0.0, give_up_at - THREADS.monotonic()))

    def _abandon(self) -> None:
        for processing in self._processings:
            processing.abandon()
        if self._sinks is not None:
            self._sinks.stop(force=True)

    def _log_state(self, state: State) -> None:
        if state is State.RUNNING:
            self._logger.info("graph_started graph=%s", self.name)
        elif state is State.STOPPING:
            self._logger.info("graph_stopping graph=%s", self.name)
        else:
            self._logger.info("graph_stopped graph=%s", self.name)

    def _log_failure(self, error: BaseException) -> None:
        from outbox.exceptions import OutboxError

        known = isinstance(error, OutboxError)
        self._logger.error("graph_failed reason=%r", str(error), exc_info=None if known else error)
