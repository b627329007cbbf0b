"""The values that pass between the rounds of a process and its lanes. No decisions here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from outbox.core.contract import LaneStopped as LaneStopped
from outbox.core.exactly_once.decisions import Stop
from outbox.core.exactly_once.lane import Doubt, Retake
from outbox.core.exactly_once.purging import BatchPurge as BatchPurge
from outbox.core.exactly_once.purging import Flushed
from outbox.core.holds.values import HoldActions
from outbox.core.patience import CircuitState, CircuitView
from outbox.core.rows import Row
from outbox.exceptions import OutboxError
from outbox.runtime import Runtime


class MayNotGoOn(OutboxError):
    """The lane ends or is not trusted any more: nobody waits for the answer, and what it is remains unknown."""


class Awaited:
    """Something that another thread settles once, well or with an error."""

    def __init__(self, runtime: Runtime) -> None:
        self._settled = runtime.event()
        self.error: BaseException | None = None

    def settle(self, error: BaseException | None = None) -> None:
        self.error = error
        self._settled.set()

    @property
    def is_settled(self) -> bool:
        return self._settled.is_set()

    def wait(self, timeout_s: float) -> bool:
        return self._settled.wait(max(0.0, timeout_s))


class Ticket(Awaited):
    """The purge of one round: it is settled when every batch of it is purged or stopped, or with an error when it is
    given up because the lanes of the process have ended."""

    def __init__(self, purges: Sequence[BatchPurge], runtime: Runtime) -> None:
        super().__init__(runtime)
        self.purges = tuple(purges)
        self.submitted_at = runtime.monotonic()
        self.stops: dict[int, Stop] = {}
        self.done: list[BatchPurge] = []
        """Those whose hold actions are done."""
        self.flushed: Flushed | None = None
        """None: it proves nothing."""

    def proves(self, flushed: Flushed) -> None:
        self.flushed = flushed


@dataclass(eq=False, slots=True)
class Batch:
    """One lane's share of a page. In flight until its rows are purged or it is given up."""

    lane: int
    session: int
    """Which readiness of the lane it was read for; a lane that took over since has read again."""
    rows: list[Row]
    ids: list[int]
    read_at: datetime
    filenode: int
    asked_at: float
    """When the read was sent, on the monotonic clock."""
    returned_at: float
    """When the read had returned, on the monotonic clock."""
    topics: Set[str]
    """Of the whole page: those of the rows, and perhaps others."""
    flush: Awaited | None = None
    """None: the purge of the batch before was sent after the read, and must prove that what was read is on disk."""
    previous: Ticket | None = None
    """Must be settled before this batch commits."""
    created: Mapping[int, int] = field(default_factory=dict)
    """When some of the page's records were stashed, by id; see `core.times`."""
    hold_actions: HoldActions | None = None
    server: str = ""
    """From which it was read, see `backends.server_of`."""
    left_out: int = 0
    """How often its lane had left records out when the page was divided."""

    def keep(self, rows: list[Row]) -> None:
        """Only these are sent."""
        self.rows, self.ids = rows, [row[0] for row in rows]

    def follow(self, previous: Ticket | None, flush: Awaited | None) -> None:
        """What must have come before it commits."""
        self.previous, self.flush = previous, flush

    def give_up_rows(self) -> list[Row]:
        rows, self.rows = self.rows, []
        return rows


@dataclass(frozen=True, slots=True)
class Command:
    """What the lane is to do next; of no use to one that was taken over, or has failed, since."""

    session: int
    """Of the lane when it was told."""
    what: Doubt | Retake | Stop


@dataclass(frozen=True, slots=True)
class End:
    """Wake up: the lane is to finish or to be abandoned, or no order came for a while."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The rounds have ended for good."""

    error: BaseException


Order = Batch | Command | End | Broken


@dataclass(frozen=True, slots=True)
class ExactlyOnceStatistics:
    """What a lane tells about itself; `stages` are seconds spent, by name."""

    lane: int
    leader_id: UUID
    phase: str
    in_flight: int
    in_flight_keys: tuple[Any, ...]
    delivered: int
    batches: int
    takeovers: int
    renewals: int
    held: int
    held_keys: int = 0
    """Of these, what a record at fault holds back, and no operator."""
    unpurged: int = 0
    """Batches that are in Kafka and whose rows are not deleted yet."""
    circuit: CircuitView = field(default_factory=lambda: CircuitView(CircuitState.CLOSED))
    """Whether Kafka and PostgreSQL can be used, as this lane sees it, and since when not."""
    stages: dict[str, float] = field(default_factory=dict)
