"""What at-least-once delivery asks of its servers: ports of one statement or one call of the client each, where that
can be, and what production has below them.

The simulation of the tests has servers of its own. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from outbox.conf import Conf
from outbox.core.holds.values import HoldActions, HoldRow
from outbox.edges.kafka.at_least_once.idempotent import Client
from outbox.edges.postgres.at_least_once.marks import MarkedRow, Marks, Scopes
from outbox.edges.postgres.common import backends, table
from outbox.edges.postgres.common.leases import TableLease
from outbox.edges.postgres.common.session import Connect, OwnedConnection
from outbox.edges.postgres.holds import MARKED, UNMARKED, HoldTable
from outbox.harvest.exactly_once import ports
from outbox.harvest.lease_keeper import lease_of
from outbox.runtime import Runtime


class MarkStatements(Protocol):
    """Of one lane, see `edges.postgres.at_least_once.marks`."""

    held: Scopes
    large: dict[int, int]
    refused_by: str

    def take(self, connection: Any, epoch: int, timeout_s: float) -> bool: ...

    def mark(
        self, connection: Any, leader: UUID, limit: int, exclude: Sequence[tuple[str, str]] = ()
    ) -> Sequence[MarkedRow]: ...

    def fetch(self, connection: Any, leader: UUID, ids: Sequence[int]) -> Sequence[MarkedRow]: ...

    def look_up(self, connection: Any, leader: UUID, ids: Sequence[int]) -> list[int]: ...

    def sweep(self, connection: Any, leader: UUID, limit: int) -> list[int]: ...

    def purge(self, connection: Any, leader: UUID, ids: Sequence[int]) -> list[int]: ...

    def reset(self, connection: Any, leader: UUID, ids: Sequence[int]) -> int: ...


class HoldStatements(Protocol):
    """On the tables of holds and dead letters, see `edges.postgres.holds`."""

    def exist(self, connection: Any) -> bool: ...

    def load(self, connection: Any, lanes: int) -> list[HoldRow]: ...

    def write(self, connection: Any, placed: Sequence[HoldRow], lifted: Sequence[int]) -> None: ...

    def run(self, connection: Any, lane: int, hold_actions: HoldActions, **given: Any) -> frozenset[int]: ...


class MarkDatabasePort(Protocol):
    def connect(self) -> OwnedConnection: ...

    def transaction(self, connection: Any) -> AbstractContextManager[None]:
        """One that has no effect in any other session than the connection's own."""

    def marks(self, lane: int) -> MarkStatements: ...

    def holds(self) -> HoldStatements:
        """Which delete no record but those that `leader` has marked."""

    def unmarked_holds(self) -> HoldStatements:
        """Which delete no record that `leader` has marked."""

    def lease(self, owner: str) -> ports.LeasePort: ...


@dataclass(frozen=True, slots=True)
class MarkServers:
    """All that the lanes of one process work with."""

    runtime: Runtime
    database: MarkDatabasePort
    make_producer: Callable[[int, Mapping[str, Any]], Client]
    """An idempotent producer for this lane, with these properties."""


class MarkDatabase:
    """A `MarkDatabasePort`: the outbox of the settings."""

    def __init__(self, conf: Conf, connect: Connect | None = None) -> None:
        self._conf, self._connect = conf, connect or connector(conf)

    def connect(self) -> OwnedConnection:
        return self._connect()

    def transaction(self, connection: Any) -> AbstractContextManager[None]:
        return backends.transaction(connection)

    def marks(self, lane: int) -> Marks:
        conf = self._conf
        return Marks(
            conf.table,
            lane,
            conf.election.lanes,
            bytes_max=conf.at_least_once.mark_bytes_max,
            keep_empty_key=conf.harvest.keep_empty_key,
        )

    def holds(self) -> HoldTable:
        conf = self._conf
        return HoldTable(conf.table, keep_empty_key=conf.harvest.keep_empty_key, guard=MARKED)

    def unmarked_holds(self) -> HoldTable:
        return HoldTable(self._conf.table, guard=UNMARKED)

    def lease(self, owner: str) -> TableLease:
        return lease_of(self._conf, owner)


def connector(conf: Conf) -> Connect:
    """Asks for the password with each connection: it may have changed."""
    return lambda: table.connect_session(
        table.parameters(conf.database), statement_timeout_s=conf.harvest.statement_timeout_s
    )
