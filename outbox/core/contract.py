"""What the daemon and the worker of a lane promise each other. Protocols, plain values and names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

STOPPED = "stopped"
"""Phase of a lane in which neither sending nor deleting can be right until an operator has decided."""


@dataclass(frozen=True, slots=True)
class MeterRead:
    """How fast a lane delivers. Emitted at most once per METRICS_INTERVAL, and only after something was delivered."""

    lane: int
    leader_id: UUID
    delivered: int  # by this owner since it acquired the lane
    interval_s: float  # since the reading before
    rate: float  # records per second in the interval
    average_rate: float  # records per second since the lane was acquired
    in_flight: int


@dataclass(frozen=True, slots=True)
class Traced:
    """A delivered record that carries a trace context."""

    record_id: int
    topic: str
    traceparent: str
    tracestate: str
    stashed_at: str
    """Milliseconds since the epoch, as the writer has put it into a header; empty: unknown."""


@dataclass(frozen=True, slots=True)
class BatchDelivered:
    """A transaction was committed in Kafka. For metrics and traces; at-least-once delivery has no batches."""

    lane: int
    leader_id: UUID
    batch: int
    count: int
    commit_s: float
    """How long the commit took."""
    began_ns: int
    committed_ns: int
    """Both on the wall clock, since the epoch."""
    delays_s: tuple[float, ...] = ()
    """From stash to commit by the database's clock, of some of the records."""
    traced: tuple[Traced, ...] = ()


@dataclass(frozen=True, slots=True)
class LaneStopped:
    """Neither sending nor deleting can be right in this lane until an operator has decided; other lanes go on."""

    lane: int
    text: str


@dataclass(frozen=True, slots=True)
class UncleanRelease:
    """The lane has ended, and the table may hold records that are in Kafka: only its own delivery mode knows which."""

    lane: int
    reason: str


class LaneHost(Protocol):
    """What the daemon gives a worker. Thread-safe; never blocks."""

    def may_start(self, lane: int) -> bool:
        """New marks and batches may begin."""

    def may_send(self, lane: int) -> bool:
        """What is in flight may still be sent."""

    def lanes_owned(self) -> int:
        """How many lanes this process works on: they share what an idle process may cost."""

    def refresh(self, lane: int) -> None:
        """Ask for a new leader id; the answer is `LaneWorker.refreshed`, or the lane ends."""

    def doubt(self, lane: int) -> None:
        """A trace of another owner was seen: ask the coordinator."""

    def step_down(self, lane: int) -> None:
        """The table refused the owner of this epoch."""

    def partitions_added(self) -> None:
        """The leader topic has more partitions than before: let the group deal them out at once."""

    def finished(self, lane: int) -> None:
        """The answer to `LaneWorker.finish`: nothing is in flight any more."""

    def emit(self, event: object) -> None:
        """Tell logs and receivers of signals; dropped when they cannot follow."""

    def fatal(self, error: BaseException) -> None:
        """Stop the harvester; the error surfaces in `Harvester.wait`."""


class LaneWorker(Protocol):
    """Harvests one owned lane in its own thread, from LeaderAcquired until it is finished or abandoned."""

    def start(self) -> None: ...

    def refreshed(self, leader_id: UUID) -> None:
        """The new leader id asked for by `LaneHost.refresh`. Does not block."""

    def finish(self, deadline: float) -> None:
        """Start nothing new, finish what is in flight before the monotonic `deadline`, then `LaneHost.finished`."""

    def abandon(self) -> None:
        """Drop everything at once; nothing of it may be sent any more. Does not block."""

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended and its connections are closed; False when it has not."""

    def statistics(self) -> Any:
        """One immutable value with at least `phase`, `in_flight`, `in_flight_keys`, `delivered` and `held`, how many
        keys are held back. Thread-safe."""


WorkerFactory = Callable[[Any, int, UUID, int, LaneHost], LaneWorker]
"""Called with (settings, lane, leader_id, epoch, host); makes a worker without starting it."""
