"""The database as one simulated process reaches it: a `DatabasePort` over simulated servers. Statements are slow or
refused, or run without an answer, or long after their sender has given up; answers arrive late."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import UUID

import psycopg

from outbox.core.exactly_once.decisions import StateRow
from outbox.core.frontier import Snapshot
from outbox.core.holds.values import HoldActions
from outbox.edges.postgres.common import backends
from outbox.edges.postgres.common.leases import OtherMode
from outbox.edges.postgres.common.session import StatementOverdue
from outbox.edges.postgres.exactly_once.companions import Found
from outbox.edges.postgres.exactly_once.reader import LeftOut, Page
from outbox.edges.postgres.exactly_once.sweeper import Below
from outbox.edges.postgres.exactly_once.sweeper import Found as Missed
from tests.simulation.checkers import Violation
from tests.simulation.exactly_once.holds import Holds
from tests.simulation.exactly_once.postgres import IDENTITY, Locked, Server, Stored, Transaction
from tests.simulation.runtime import Answer, Waiters

STATEMENT_TIMEOUT_S = 0.8
_LOCK_TIMEOUT_S, _LOCK_POLL_S = 0.4, 0.005
_LATENCY_S = (0.0005, 0.004)


def _lost(text: str) -> psycopg.OperationalError:
    return psycopg.OperationalError(text)


class Connection:
    """One session, one statement at a time."""

    def __init__(self, process: Any, server: Server, name: str) -> None:
        self.name = name
        self._process, self._world, self._runtime = process, process.world, process.runtime
        self.watches: bool = process.world.watches
        self.server, self._crashes = server, server.crashes
        self.backend = f"{process.world.new_pid()} {server.started}"
        self.opened_at, self.give_up_at = float("-inf"), float("inf")
        self.interrupt: Any = None
        self.meanwhile: Callable[[], None] | None = None
        self.meanwhile_s = 3600.0
        self.sent: Callable[[], None] | None = None  # called when a statement is on its way
        self.closed = self.broken = self.is_given_up = False
        self.is_notified, self.ears = False, Waiters()
        self._transaction: Transaction | None = None
        process.connections[self] = None

    def close(self) -> None:
        self.closed = True
        self._process.connections.pop(self, None)
        self.server.sessions.pop(self, None)
        self.server.listeners.pop(self, None)
        self._end_transaction()

    def _end_transaction(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.end()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        transaction = self._transaction = Transaction(self.server)
        try:
            yield
        except BaseException:
            self._end_transaction()
            raise
        try:
            self.ask(transaction.commit)
        finally:
            self._transaction = None  # when the answer is lost, nobody knows whether it is committed

    def hear(self) -> None:
        self.is_notified = True
        self._runtime.wake(self.ears)

    # ---- one statement

    def ask(self, statement: Callable[[Server], Any], late: Answer | None = None, *, is_guarded: bool = False) -> Any:
        """Its result. A failure breaks the connection, and the statement may be executed all the same, or later.
        `late`: what the statement itself settles, in the end. `is_guarded`: by a savepoint."""
        world, faults, answer = self._world, self._world.faults, late or Answer(self._runtime, "PostgreSQL")
        self._process.point("statement")
        if self.closed or self.broken or self.is_given_up:
            self._end_transaction()
            raise _lost("the connection is closed")
        delay_s = world.random.uniform(*_LATENCY_S)
        if world.chance(faults.statement_slow):
            delay_s = world.random.uniform(0.05, 3.0)
        if not self._process.table_ok or faults.broken == self.name or world.chance(faults.statement_error):
            world.after(delay_s, partial(self._abort, answer, _lost("not executed"), self._transaction))
        elif delay_s > STATEMENT_TIMEOUT_S and world.chance(0.5):
            cancelled = psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
            ended = None if is_guarded else self._transaction
            world.after(STATEMENT_TIMEOUT_S * 0.99, partial(self._abort, answer, cancelled, ended))
        else:
            give_up_at = world.now + delay_s + _LOCK_TIMEOUT_S
            world.after(delay_s, partial(self._arrive, statement, answer, give_up_at, late is None))
        if self.sent is not None:
            self.sent()
        self._wait(answer)
        return answer.value

    def _wait(self, answer: Answer) -> None:
        runtime, interrupt = self._runtime, self.interrupt
        while not answer.done:
            left_s = self.give_up_at - runtime.monotonic()
            if left_s <= 0 or (interrupt is not None and interrupt.is_set()):
                self.is_given_up = True
                raise StatementOverdue("given up")
            others = () if interrupt is None else (interrupt.waiters,)
            is_done = answer.wait(min(left_s, self.meanwhile_s), *others)
            if not is_done and self.meanwhile is not None:
                self.meanwhile()
        if answer.error is not None:
            self.broken = isinstance(answer.error, psycopg.Error) and answer.error.sqlstate is None
            raise answer.error

    @staticmethod
    def _abort(answer: Answer, error: psycopg.Error, transaction: Transaction | None) -> None:
        answer.settle(error=error)
        if transaction is not None:
            transaction.end()

    def lose(self) -> None:
        self._crashes = -1
        self.server.sessions.pop(self, None)

    def is_lost(self) -> bool:
        return self._crashes != self.server.crashes

    def _arrive(self, statement: Callable[[Server], Any], answer: Answer, give_up_at: float, is_reply: bool) -> None:
        world = self._world
        if self.is_lost():
            answer.settle(error=_lost("the server was restarted"))
            return
        try:
            value = statement(self.server)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.InFailedSqlTransaction, OtherMode) as error:
            answer.settle(error=error)
            return
        except Locked:
            if self.closed:
                return
            if world.now > give_up_at:
                answer.settle(error=psycopg.errors.LockNotAvailable("canceling statement due to lock timeout"))
            else:
                world.after(_LOCK_POLL_S, partial(self._arrive, statement, answer, give_up_at, is_reply))
            return
        if is_reply:
            self.reply(answer, value)

    def reply(self, answer: Answer, value: Any, *, is_page: bool = False) -> None:
        world = self._world
        faults = world.faults
        if world.chance(faults.answer_lost) or not self._process.table_ok:
            world.after(0.05, lambda: answer.settle(error=_lost("executed, and the answer was lost")))
            return
        delay_s = world.random.uniform(*_LATENCY_S)
        if world.chance(faults.page_late if is_page else faults.answer_late):
            delay_s = world.random.uniform(*faults.late_s)
            if is_page:
                world.late(delay_s)
        world.after(delay_s, lambda: answer.settle(value))

    def perhaps_lost(self, fault: str) -> None:
        if self._world.chance(getattr(self._world.faults, fault)):
            self.broken = True
            raise _lost("not executed")

    def perhaps_late(self) -> None:
        self._process.perhaps_evicted()

    def nothing(self) -> None:
        """A statement of which nothing is simulated but that it takes its time and may fail."""
        self.ask(lambda server: None)

    # ---- purges

    def purge_plain(self, lane: int, batch: int, ids: Sequence[int], filenode: int) -> int:
        backend = backends.of(self)  # type: ignore[arg-type]

        def run(server: Server) -> int:
            assert backend == self.backend
            return server.purge_plain(lane, batch, ids, filenode)

        return int(self.ask(run))

    def purge(self, lane: int, batch: int, ids: Sequence[int], filenode: int, *, compared: bool) -> tuple[bool, int]:
        transaction = self._transaction
        assert transaction is not None, "what counts rows, or shares a flush with others, has one"
        backend = backends.of(self)  # type: ignore[arg-type]

        def run(server: Server) -> tuple[bool, int]:
            assert backend == self.backend
            if transaction.is_over:
                return False, 0
            return server.purge(transaction, lane, batch, ids, filenode, compared=compared)

        moved, deleted = self.ask(run)
        return moved, deleted

    def run(self, lane: int, hold_actions: HoldActions) -> None:
        transaction = self._transaction
        assert transaction is not None, "what deletes a record shares the transaction of a purge"

        def run(server: Server) -> None:
            if not transaction.is_over:
                if self._world.chance(self._world.faults.actions_locked):
                    raise psycopg.errors.LockNotAvailable("canceling statement due to lock timeout")
                server.run(transaction, lane, hold_actions)

        self.perhaps_late()
        self.ask(run, is_guarded=True)

    def kept(self, lane: int, batch: int, ids: Sequence[int], filenode: int) -> int:
        transaction = self._transaction
        assert transaction is not None
        return int(self.ask(lambda server: server.kept(transaction, lane, batch, ids, filenode)))


class Statements:
    def state(self, connection: Connection, lanes: int) -> tuple[UUID, StateRow]:
        return IDENTITY, connection.ask(lambda server: server.now.state)

    def refuse_request(self, connection: Connection, lanes: int, note: str) -> None:
        connection.ask(lambda server: server.refuse_request(lanes))

    def close_lanes(self, connection: Connection, lanes: int) -> bool:
        return bool(connection.ask(lambda server: server.close_lanes(lanes)))

    def close_all_lanes(self, connection: Connection, before: int, newest: int) -> bool:
        return bool(connection.ask(lambda server: server.close_all_lanes(before, newest)))

    def open_lanes(
        self,
        connection: Connection,
        change: int,
        lanes: int,
        note: str = "",
        settled: Mapping[int, int] | None = None,
    ) -> bool:
        return bool(connection.ask(lambda server: server.open_lanes(change, lanes, settled or {})))

    def purged(self, connection: Connection, lane: int) -> int:
        return int(connection.ask(lambda server: server.purged(lane)))

    def purged_of_all(self, connection: Connection) -> dict[int, int]:
        return dict(connection.ask(lambda server: dict(server.now.purged)))

    def purge(
        self,
        connection: Connection,
        lane: int,
        batch: int,
        ids: Sequence[int],
        filenode: int,
        *,
        compared: bool = False,
    ) -> int:
        return connection.purge(lane, batch, ids, filenode, compared=compared)[1]

    def purge_plain(self, connection: Connection, lane: int, batch: int, ids: Sequence[int], filenode: int) -> int:
        return connection.purge_plain(lane, batch, ids, filenode)

    def purge_counted(
        self, connection: Connection, lane: int, batch: int, ids: Sequence[int], filenode: int
    ) -> tuple[bool, int]:
        connection.perhaps_late()
        return connection.purge(lane, batch, ids, filenode, compared=False)

    def kept(self, connection: Connection, lane: int, batch: int, ids: Sequence[int], filenode: int) -> int:
        return connection.kept(lane, batch, ids, filenode)

    def why_kept(self, connection: Connection, count: int) -> str:
        return f"{count} rows were kept."

    def look_up(self, connection: Connection, ids: Sequence[int]) -> Found:
        found: Found = connection.ask(lambda server: server.look_up(ids))
        return found

    def flush(self, connection: Connection) -> None:
        connection.ask(lambda server: server.flush())

    def allow(self, connection: Connection, timeout_s: float | None) -> None:
        connection.nothing()

    def require_backend(self, connection: Connection, found: str | None = None) -> None:
        if found is None:
            connection.nothing()
        backends.require(connection, found or connection.backend)  # type: ignore[arg-type]


class TakeLane:
    """What counts is that nothing is read or sent after the lease was given back, or has gone to another mode.
    The rows of lanes are not simulated, which keep a release that comes late from having an effect."""

    def __init__(self, process: Any) -> None:
        self._process = process

    def take(self, connection: Connection, *, lanes: int, owned: Mapping[int, UUID]) -> bool:
        world = self._process.world

        def take(server: Server) -> None:
            if world.has_other_mode:
                raise OtherMode("the table is harvested in another mode")
            self._process.holds_lease, world.leased_at = True, world.now
            server.flush()

        connection.ask(take)
        return True

    def release(self, connection: Connection) -> None:
        def release(server: Server) -> None:
            if not (connection.broken or connection.is_given_up):
                if self._process.world.kafka.may_commit(self._process):
                    raise Violation(f"{self._process.name} gives back its lease while it may commit")
                self._process.holds_lease = False
                server.flush()

        connection.ask(release)


class Reader:
    sequence = "outbox_id_seq"

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes

    def read(
        self,
        connection: Connection,
        look: int,
        lanes: Sequence[int],
        excluded: Sequence[int],
        limit: int,
        bytes_max: int,
        left_out: LeftOut,
    ) -> Page:
        """One statement in two moments: its snapshot, and later the sequence, the next xid and the clock."""
        if not connection._process.holds_lease:
            raise Violation(f"{connection._process.name} reads after it gave back its lease on the table")
        connection._world.limits[connection._process.name] = limit
        page = Answer(connection._runtime, "PostgreSQL")
        server, world = connection.server, connection._world

        def begin(server: Server) -> None:
            server.readers += 1
            seen = server.snapshot(), server.select(look, lanes, self.lanes, excluded, limit, left_out)
            purged = {lane: server.now.purged.get(lane, 0) for lane in lanes}
            world.after(world.random.choice((0.0, 0.003)) * world.random.random(), lambda: end(*seen, purged))

        def end(snapshot: Snapshot, found: list[Stored], purged: dict[int, int]) -> None:
            server.readers -= 1
            if connection.is_lost():
                page.settle(error=_lost("the server was restarted"))
                return
            seen = Snapshot(snapshot.running, snapshot.xmax, server.next_xid())
            shown = self._page(server, seen, found, purged, connection.backend, limit, left_out)
            connection.reply(page, shown, is_page=True)

        found: Page = connection.ask(begin, page)
        return found

    def _page(
        self,
        server: Server,
        snapshot: Snapshot,
        found: list[Stored],
        purged: dict[int, int],
        backend: str,
        limit: int,
        left_out: LeftOut,
    ) -> Page:
        several = self.lanes > 1
        rows: list[Any] = [
            (*stored.row, stored.create_time, *([stored.lane_hash % self.lanes] if several else [])) for stored in found
        ]
        return Page(
            snapshot=snapshot,
            sequence=server.now.sequence,
            purged=purged,
            read_at=server.clock(),
            filenode=server.now.filenode,
            backend=backend,
            is_full=len(rows) >= limit,
            passes_over=len(purged.keys() - left_out.lanes) < self.lanes or bool(left_out.topics),
            rows=rows,
            last_id=max((row[0] for row in rows), default=None),
        )


class Sweeper:
    def __init__(self, lanes: int) -> None:
        self.lanes = lanes

    def prepare(self, connection: Connection) -> None:
        connection.nothing()

    def look(self, connection: Connection, first_block: int, blocks: int, below: Below) -> tuple[list[Missed], int]:
        found: tuple[list[Missed], int] = connection.ask(
            lambda server: server.look_at(first_block, blocks, below, self.lanes)
        )
        return found


class Database:
    """A `DatabasePort`."""

    sequence = Reader.sequence

    def __init__(self, process: Any) -> None:
        self._process, self._world = process, process.world
        self.identity: UUID | None = None
        self.state = process.world.postgres.primary.now.state
        self.owner = ""
        self.statements, self.holds = Statements(), Holds()

    def connect(self, name: str) -> Connection:
        """It is looked at, as every connection, before it is used: what it shows then, `state` says."""
        world, runtime = self._world, self._process.runtime
        runtime.sleep(world.random.uniform(0.001, 0.006))
        if not self._process.table_ok or world.chance(world.faults.statement_error):
            raise _lost("the server cannot be reached")
        connection = Connection(self._process, world.postgres.primary, name)
        connection.give_up_at = runtime.monotonic() + STATEMENT_TIMEOUT_S
        try:
            self.state = connection.ask(lambda server: server.now.state)
            if self.owner and world.watches:
                connection.ask(lambda server: server.sessions.update({connection: self.owner}))
        except BaseException:
            connection.close()
            raise
        self.identity = IDENTITY
        connection.opened_at = runtime.monotonic()
        return connection

    def reader(self, lanes: int) -> Reader:
        return Reader(lanes)

    def sweeper(self, lanes: int) -> Sweeper:
        return Sweeper(lanes)

    def lease(self, owner: str) -> TakeLane:
        return TakeLane(self._process)

    def listen(self, connection: Connection) -> None:
        connection.ask(lambda server: server.listeners.update({connection: None}))

    def wait_notified(self, connection: Connection, interrupt: Any) -> bool:
        if not (connection.is_notified or interrupt.is_set()):
            self._process.runtime.wait(None, connection.ears, interrupt.waiters)
        if connection.closed or connection.is_lost():
            raise _lost("the connection is closed")
        found, connection.is_notified = connection.is_notified, False
        return found
