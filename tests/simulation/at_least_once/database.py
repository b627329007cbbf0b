"""The table as one simulated process reaches it: a `MarkDatabasePort`. The scenario chooses the faults of statements,
as in exactly-once delivery."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg

from outbox.core.holds.values import HoldActions, HoldRow
from outbox.edges.postgres.at_least_once.marks import MarkedRow, Scopes
from outbox.edges.postgres.common.session import StatementOverdue
from tests.simulation.at_least_once.table import Table, Transaction
from tests.simulation.exactly_once import database
from tests.simulation.runtime import Answer


class Connection(database.Connection):
    def __init__(self, process: Any, table: Table) -> None:
        super().__init__(process, table, "marks")  # type: ignore[arg-type]
        self._under_way = 0

    @property
    def is_there(self) -> bool:
        """Whether its session is: a server notices a client that has gone when the statement under way is done."""
        return not self.is_lost() and (not self.closed or self._under_way > 0)

    def ask(self, statement: Callable[[Any], Any], late: Answer | None = None, *, is_guarded: bool = False) -> Any:
        self._under_way += 1

        def arrive(server: Any) -> Any:
            found = statement(server)
            self._under_way -= 1
            return found

        try:
            return super().ask(arrive, late, is_guarded=is_guarded)
        except StatementOverdue:
            raise  # it may still be executed
        except psycopg.Error:
            self._under_way = 0
            raise

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        if self._transaction is not None:  # a part of it
            yield self._transaction
            return
        transaction: Any = Transaction(self.server)  # type: ignore[arg-type]
        self._transaction = transaction
        try:
            yield transaction
        except BaseException:
            self._end_transaction()
            raise
        try:
            self.ask(lambda table: transaction.commit())
        finally:
            self._transaction = None  # when the answer is lost, nobody knows whether it is committed


class Marks:
    """A `MarkStatements`."""

    def __init__(self, process: Any, lane: int) -> None:
        self._world, self._lane = process.world, lane
        self.held = Scopes()
        self.large: dict[int, int] = {}
        self.refused_by = ""
        self._highest: int | None = None

    def take(self, connection: Connection, epoch: int, timeout_s: float) -> bool:
        newer = connection.ask(lambda table: table.take(connection, self._lane, epoch))
        if newer is not None:
            self.refused_by = f"epoch {newer}"
            return False
        self._highest = None
        return True

    def mark(
        self, connection: Connection, leader: UUID, limit: int, exclude: Sequence[tuple[str, str]] = ()
    ) -> list[MarkedRow]:
        held = self.held
        rows: list[MarkedRow] = connection.ask(
            lambda table: table.mark(connection, self._lane, leader, limit, exclude, held)
        )
        self._highest = None if len(rows) < limit else max(self._highest or 0, *(row.id for row in rows))
        if rows and self._world.chance(self._world.faults.mark_cut):
            return [row for row in rows if row.kafka_key]  # the sweep finds the others; no order would survive it
        return rows

    def fetch(self, connection: Connection, leader: UUID, ids: Sequence[int]) -> list[MarkedRow]:
        return list(connection.ask(lambda table: table.fetch(leader, ids)))

    def look_up(self, connection: Connection, leader: UUID, ids: Sequence[int]) -> list[int]:
        return list(connection.ask(lambda table: table.look_up(leader, ids)))

    def sweep(self, connection: Connection, leader: UUID, limit: int) -> list[int]:
        return list(connection.ask(lambda table: table.sweep(leader, self._highest, limit)))

    def purge(self, connection: Connection, leader: UUID, ids: Sequence[int]) -> list[int]:
        return list(connection.ask(lambda table: table.purge(leader, ids)))

    def reset(self, connection: Connection, leader: UUID, ids: Sequence[int]) -> int:
        return int(connection.ask(lambda table: table.reset(leader, ids)))


class Holds:
    """A `HoldStatements`."""

    def __init__(self, *, marked: bool) -> None:
        self._marked = marked

    def exist(self, connection: Connection) -> bool:
        connection.nothing()
        return True

    def load(self, connection: Connection, lanes: int) -> list[HoldRow]:
        return list(connection.ask(lambda table: table.hold_table.load(lanes)))

    def write(self, connection: Connection, placed: Sequence[HoldRow], lifted: Sequence[int]) -> None:
        if placed:
            connection.ask(lambda table: table.hold_table.hold(placed))
        if lifted:
            connection.ask(lambda table: table.hold_table.lift(lifted))

    def run(self, connection: Connection, lane: int, hold_actions: HoldActions, **given: Any) -> frozenset[int]:
        leader, marked = given.get("leader"), self._marked
        with connection.transaction() as transaction:

            def run(table: Table) -> frozenset[int]:
                return table.run(transaction, lane, hold_actions, leader, marked=marked)

            return frozenset(connection.ask(run))


class TakeLane:
    """There is no other delivery mode."""

    def take(self, connection: Connection, *, lanes: int, owned: Mapping[int, UUID]) -> bool:
        connection.nothing()
        return True

    def release(self, connection: Connection) -> None:
        connection.nothing()


class Database:
    """A `MarkDatabasePort`."""

    def __init__(self, process: Any) -> None:
        self._process, self._world = process, process.world

    def connect(self) -> Connection:
        world, runtime = self._world, self._process.runtime
        runtime.sleep(world.random.uniform(0.001, 0.006))
        if not self._process.table_ok or world.chance(world.faults.statement_error):
            raise psycopg.OperationalError("the server cannot be reached")
        connection = Connection(self._process, world.table)
        connection.opened_at = runtime.monotonic()
        return connection

    @contextmanager
    def transaction(self, connection: Connection) -> Iterator[None]:
        with connection.transaction():
            connection.nothing()
            yield

    def marks(self, lane: int) -> Marks:
        return Marks(self._process, lane)

    def holds(self) -> Holds:
        return Holds(marked=True)

    def unmarked_holds(self) -> Holds:
        return Holds(marked=False)

    def lease(self, owner: str) -> TakeLane:
        return TakeLane()
