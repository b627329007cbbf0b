"""What exactly-once delivery asks of its servers: one statement or one call of the client each, where that can be.

Production has `rounds.database.Database` and `kafka.LaneKafka` below these, the simulation of the tests
has servers of its own. Nothing is decided here. A statement takes a connection that the same port has opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from outbox.core.exactly_once.decisions import StateRow
from outbox.core.exactly_once.ledger import Entry
from outbox.core.holds.crashes import Care, Watch
from outbox.core.holds.values import HoldActions, HoldRow
from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer
from outbox.edges.postgres.common.session import OwnedConnection
from outbox.edges.postgres.exactly_once.companions import Found
from outbox.edges.postgres.exactly_once.reader import LeftOut, Page
from outbox.edges.postgres.exactly_once.sweeper import Below
from outbox.edges.postgres.exactly_once.sweeper import Found as Missed
from outbox.runtime import Interrupt, Runtime


class StatementsPort(Protocol):
    """On the table and its companions, see `edges.postgres.exactly_once.companions`."""

    def state(self, connection: Any, lanes: int) -> tuple[UUID, StateRow]: ...

    def refuse_request(self, connection: Any, lanes: int, note: str) -> None: ...

    def close_lanes(self, connection: Any, lanes: int) -> bool: ...

    def close_all_lanes(self, connection: Any, before: int, newest: int) -> bool: ...

    def open_lanes(
        self, connection: Any, change: int, lanes: int, note: str = "", settled: Mapping[int, int] | None = None
    ) -> bool: ...

    def purged(self, connection: Any, lane: int) -> int: ...

    def purged_of_all(self, connection: Any) -> dict[int, int]: ...

    def purge(
        self, connection: Any, lane: int, batch: int, ids: Sequence[int], filenode: int, *, compared: bool = False
    ) -> int: ...

    def purge_plain(self, connection: Any, lane: int, batch: int, ids: Sequence[int], filenode: int) -> int: ...

    def purge_counted(
        self, connection: Any, lane: int, batch: int, ids: Sequence[int], filenode: int
    ) -> tuple[bool, int]: ...

    def kept(self, connection: Any, lane: int, batch: int, ids: Sequence[int], filenode: int) -> int: ...

    def why_kept(self, connection: Any, count: int) -> str: ...

    def look_up(self, connection: Any, ids: Sequence[int]) -> Found: ...

    def flush(self, connection: Any) -> None: ...

    def allow(self, connection: Any, timeout_s: float | None) -> None: ...

    def require_backend(self, connection: Any, found: str | None = None) -> None: ...


class HoldsPort(Protocol):
    """On the tables of holds, dead letters and crashes, see `edges.postgres.holds`."""

    def load(self, connection: Any, lanes: int) -> list[HoldRow]: ...

    def write(self, connection: Any, placed: Sequence[HoldRow], lifted: Sequence[int]) -> None: ...

    def run_soon(self, connection: Any, lane: int, hold_actions: HoldActions, wait_ms: int) -> None: ...

    def watch(self, connection: Any, lane: int) -> Watch | None: ...

    def own(self, connection: Any, lane: int, owner: str, care: Care) -> None: ...

    def start(self, connection: Any, lane: int, owner: str, ids: Sequence[int]) -> None: ...

    def calm(self, connection: Any, lane: int, owner: str) -> None: ...

    def leave(self, connection: Any, lane: int, owner: str) -> None: ...


class ReaderPort(Protocol):
    """Reads pages, see `edges.postgres.exactly_once.reader`."""

    lanes: int
    sequence: str

    def read(
        self,
        connection: Any,
        look: int,
        lanes: Sequence[int],
        excluded: Sequence[int],
        limit: int,
        bytes_max: int,
        left_out: LeftOut,
    ) -> Page: ...


class SweeperPort(Protocol):
    """Looks at blocks of the table, see `edges.postgres.exactly_once.sweeper`."""

    lanes: int

    def prepare(self, connection: Any) -> None: ...

    def look(self, connection: Any, first_block: int, blocks: int, below: Below) -> tuple[list[Missed], int]: ...


class LeasePort(Protocol):
    """Of this process on the table, see `edges.postgres.common.leases`."""

    def take(self, connection: Any, *, lanes: int, owned: Mapping[int, UUID]) -> bool: ...

    def release(self, connection: Any) -> None: ...


class DatabasePort(Protocol):
    identity: UUID | None
    """Of the database, once a connection has been opened; and so `state` and `sequence`."""
    state: StateRow
    sequence: str
    owner: str
    """Set by the rounds, for connections to show."""

    @property
    def statements(self) -> StatementsPort: ...

    @property
    def holds(self) -> HoldsPort: ...

    def connect(self, name: str) -> OwnedConnection: ...

    def reader(self, lanes: int) -> ReaderPort: ...

    def sweeper(self, lanes: int) -> SweeperPort: ...

    def lease(self, owner: str) -> LeasePort: ...

    def listen(self, connection: Any) -> None:
        """From now on notifications of new records arrive at this connection."""

    def wait_notified(self, connection: Any, interrupt: Interrupt) -> bool:
        """Until something arrives or the wait is interrupted; whether there is news."""


class KafkaPort(Protocol):
    """The ledger topic, see `edges.kafka.exactly_once.ledger_topic`, and the producers."""

    name: str

    def prepare(self, lanes: int, ledger_retention_s: float) -> None: ...

    def partitions(self) -> int: ...

    def grow(self, topic: str, partitions: int) -> bool: ...

    def last_entry(self, lane: int, give_up_at: float, *, waits: bool = True) -> Entry | None: ...

    def size_limits(self, topics: Iterable[str]) -> dict[str, int]: ...

    def close(self) -> None: ...

    def transactional_id(self, lane: int) -> str: ...

    def producer(self, lane: int, request_bytes: int | None) -> TransactionalProducer:
        """Not initialised. It puts no more bytes into one request, but for a record alone."""


@dataclass(frozen=True, slots=True)
class Servers:
    """All that the lanes of one process work with."""

    runtime: Runtime
    database: DatabasePort
    kafka: KafkaPort
