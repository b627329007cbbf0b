"""The simulated PostgreSQL: rows of positions with their locks, effects, sessions that are cut, and failovers.

A statement arrives when the network has carried it, also if its sender stands still or has died meanwhile. What the
client sends last before a connection is lost may arrive or not, at once or late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from greenlet import getcurrent

from outbox.core.consumers import blame
from outbox.core.consumers.values import CommitInDoubt, Partition, Position
from tests.simulation.checkers import Violation
from tests.simulation.consumers.checkers import Effects, Written
from tests.simulation.runtime import Answer

LOCK_TIMEOUT_S = 1.5


class Lost(Exception):
    """The connection."""


class Failed(Exception):
    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


class FunctionFailed(Exception):
    """The user's function has raised."""


class Server:
    """One server; after a failover it is dead, and a copy goes on."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.rows: dict[Partition, Position] = {}
        self.written_by: dict[Partition, int] = {}
        self.effects = Effects()
        self.locks: dict[Partition, Session] = {}
        self.sessions: dict[Session, None] = {}
        self.is_alive = True

    def copied(self) -> Server:
        copy = Server(self.world)
        copy.rows, copy.effects, copy.written_by = dict(self.rows), self.effects.copied(), dict(self.written_by)
        return copy

    def fail(self) -> None:
        self.is_alive = False
        for session in list(self.sessions):
            session.end()


class Session:
    """One backend and, as long as the connection lasts, its client."""

    def __init__(self, server: Server, process: Any) -> None:
        self.server, self.process, self.world = server, process, server.world
        self.is_connected = self.is_alive = True
        self.xid = 0
        self.effects: list[Written] = []
        self.moved: dict[Partition, tuple[int, Position]] = {}
        self.commits = False
        """A COMMIT is on its way or under way."""
        self.not_owned: set[Partition] = set()
        """What the group had taken back when the rows were locked."""
        self._waits: Callable[[], None] | None = None
        self._answer: Answer | None = None
        server.sessions[self] = None

    # ---- the client's side

    def ask(self, act: Callable[[Callable[..., None]], None], *, is_commit: bool = False) -> Any:
        """`act` runs on the server, with what it is to call when it is done."""
        world, faults = self.world, self.world.faults
        if not self.is_connected:
            raise Lost
        answer = self._answer = Answer(self.process.runtime, "PostgreSQL")
        self.commits = is_commit
        arrives_s = world.latency()
        is_cut, never_arrives = world.chance(faults.cut), world.random.random() < 0.4
        if is_commit:
            is_cut = world.chance(faults.cut_commit)
            if world.chance(faults.commit_late):
                arrives_s += world.random.uniform(0.0, 2.5)
        if is_cut:
            world.after(world.latency(), self._cut)
        if not (is_cut and never_arrives):
            world.after(arrives_s, lambda: self._arrive(act, answer))
        elif is_commit:
            world.after(arrives_s, self.end)
        answer.wait(None)
        if answer.error is not None:
            raise answer.error
        self.commits = False
        return answer.value

    def _cut(self) -> None:
        """The client notices; the server does later, unless it is at work for the client."""
        if self.is_connected:
            self.is_connected = False
            if self._answer is not None:
                self._answer.settle(error=Lost())
            if not self.commits:
                self.world.after(self.world.random.choice((0.0, 0.3, 1.0)), self.end)

    def close(self) -> None:
        """By the client, or by the system when the client has died. What was sent before still arrives."""
        self.is_connected = False
        if not self.commits:
            self.world.after(self.world.latency(), self.end)

    # ---- the server's side

    def _arrive(self, act: Callable[[Callable[..., None]], None], answer: Answer) -> None:
        if not self.is_alive or (answer.done and not self.commits):
            return

        def reply(value: Any = None, error: BaseException | None = None) -> None:
            self.world.after(self.world.latency(), lambda: answer.settle(value, error))

        act(reply)

    def begin(self) -> None:
        self.xid = self.world.new_xid()
        self.effects, self.moved = [], {}

    def lock(self, partitions: Sequence[Partition], done: Callable[..., None]) -> None:
        """FOR UPDATE: in one order, each waited for. A row that was moved meanwhile is not returned."""
        seen = {p: self.server.rows[p] for p in sorted(partitions) if p in self.server.rows}
        left = list(seen)
        found: dict[Partition, Position] = {}

        def go_on() -> None:
            while left and self.is_alive:
                partition = left[0]
                holder = self.server.locks.get(partition)
                if holder not in (None, self):
                    self._waits = go_on
                    return
                self.server.locks[partition] = self
                if (row := self.server.rows.get(partition)) is not None and row is seen[partition]:
                    found[partition] = row
                left.pop(0)
            self._waits = None
            if self.is_alive:
                done(found)

        def give_up() -> None:
            if self._waits is go_on and self.is_alive:
                self._waits = None
                done(None, Failed("55P03"))

        self.world.after(LOCK_TIMEOUT_S, give_up)
        go_on()

    def write(self, moved: Mapping[Partition, tuple[int, Position]]) -> int:
        for partition, (before, position) in moved.items():
            row = self.server.rows.get(partition)
            if row is not None and row.next == before and self.server.locks.get(partition, self) is self:
                self.server.locks[partition] = self
                self.moved[partition] = before, position
        return len(self.moved)

    def commit(self, done: Callable[..., None]) -> None:
        self.commits = False
        if stolen := self.not_owned & self.moved.keys():
            raise Violation(f"{self.process.name} began a batch of {stolen} after the group had taken it back")
        for message in self.effects:
            self.server.effects.add(message)
        self.server.rows.update({partition: position for partition, (_, position) in self.moved.items()})
        self.server.written_by.update(dict.fromkeys(self.moved, self.xid))
        self.world.note("commit", self.process.name, [message.uid for message in self.effects])
        self.process.committed += len(self.effects)
        self.world.committed[self.xid] = None
        self._release()
        done()

    def rollback(self) -> None:
        self.effects, self.moved = [], {}
        self._release()

    def end(self) -> None:
        """By the server, or with it."""
        if self._answer is not None:
            self._answer.settle(error=Lost())
        if self.is_alive:
            self.is_alive = self.is_connected = self.commits = False
            self.server.sessions.pop(self, None)
            self.rollback()

    def _release(self) -> None:
        held = [partition for partition, holder in self.server.locks.items() if holder is self]
        for partition in held:
            del self.server.locks[partition]
        if held:
            for session in list(self.server.sessions):
                if session._waits is not None:
                    self.world.after(0.0, session._wake)

    def _wake(self) -> None:
        if self._waits is not None:
            self._waits()


class Positions:
    """A `PositionsPort`."""

    def __init__(self, process: Any) -> None:
        self._process, self._world = process, process.world

    def load(self, session: Session, consumer: str, partitions: Sequence[Partition]) -> dict[Partition, Position]:
        def act(reply: Callable[..., None]) -> None:
            rows = session.server.rows
            reply({partition: rows[partition] for partition in partitions if partition in rows})

        return session.ask(act)  # type: ignore[no-any-return]

    def create(self, session: Session, consumer: str, positions: Mapping[Partition, Position]) -> None:
        def act(reply: Callable[..., None]) -> None:
            for partition, position in positions.items():
                session.server.rows.setdefault(partition, position)
                self._world.begun.setdefault(partition, position.next)
            reply()

        session.ask(act)

    def lock(
        self, session: Session, consumer: str, partitions: Sequence[Partition]
    ) -> tuple[dict[Partition, Position], int]:
        def act(reply: Callable[..., None]) -> None:
            session.not_owned = set(partitions) - self._process.client.owned
            session.lock(partitions, reply)

        return session.ask(act), session.xid

    def write(
        self, session: Session, consumer: str, moved: Mapping[Partition, tuple[int, Position]]
    ) -> tuple[int, int]:
        return session.ask(lambda reply: reply(session.write(moved))), session.xid

    def settle(
        self, session: Session, consumer: str, partitions: Sequence[Partition]
    ) -> dict[Partition, tuple[Position, int]]:
        def act(reply: Callable[..., None]) -> None:
            def locked(found: Any, error: BaseException | None = None) -> None:
                session.rollback()
                reply(found, error)

            session.lock(partitions, locked)

        session.ask(act)
        return self.written(session, partitions)  # what was waited for has deleted the rows that were seen

    def written(self, session: Session, partitions: Sequence[Partition]) -> dict[Partition, tuple[Position, int]]:
        def act(reply: Callable[..., None]) -> None:
            rows, by = session.server.rows, session.server.written_by
            reply({partition: (rows[partition], by.get(partition, 0)) for partition in partitions if partition in rows})

        return session.ask(act)  # type: ignore[no-any-return]

    def unblock(self, session: Session, consumer: str, partitions: Sequence[Partition]) -> int:
        def act(reply: Callable[..., None]) -> None:
            holders = {session.server.locks.get(partition) for partition in partitions} - {None, session}
            for holder in sorted(holders, key=lambda one: one.xid):  # type: ignore[union-attr,arg-type,return-value]
                holder.end()  # type: ignore[union-attr]
            reply(len(holders))

        return int(session.ask(act))


class Transaction:
    """A `TransactionPort`."""

    def __init__(self, process: Any) -> None:
        self._process, self._world = process, process.world
        self.session: Session | None = None
        self._doubtful: Session | None = None
        self.hooks: list[Callable[[], None]] = []
        process.transactions.append(self)

    def connection(self) -> Session:
        if self.session is None or not self.session.is_connected:
            if self._world.chance(self._world.faults.no_connection) or not self._process.database_ok:
                self._process.runtime.sleep(0.05)
                raise Lost
            self.session = Session(self._world.primary, self._process)
        return self.session

    def begin(self, timeout_s: float) -> Session:
        session = self.connection()
        doubtful = self._doubtful
        if doubtful is not None and doubtful.commits and doubtful.is_alive and doubtful.server is self._world.primary:
            raise Violation(f"{self._process.name} goes on while a COMMIT of its own is under way")
        session.begin()
        self.hooks = []
        getcurrent().transaction = self  # type: ignore[attr-defined]
        xid = session.xid

        def idle() -> None:
            """idle_in_transaction_session_timeout"""
            if session.xid == xid and session.is_alive and not session.commits:
                session.end()

        self._world.after(timeout_s, idle)
        return session

    def problem(self) -> str:
        return ""

    def commit(self) -> list[Callable[[], None]]:
        session, hooks = self.session, self.hooks
        assert session is not None
        try:
            session.ask(session.commit, is_commit=True)
        except Lost:
            self._doubtful = session
            raise CommitInDoubt(hooks) from None
        session.xid = 0
        return hooks

    def is_replaced(self, xid: int) -> bool:
        is_another = self.session is not None and self.session.is_connected and self.session.xid != xid
        try:
            self.rollback()
            self.connection().ask(lambda reply: reply())
        except Lost:
            return is_another
        return is_another or xid in self._world.committed

    def rollback(self) -> None:
        if self.session is not None and self.session.is_connected:
            session = self.session
            session.ask(lambda reply: reply(session.rollback()))
            session.xid = 0

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
        self.session = None

    def cancel(self) -> None:
        self._process.cancelled += 1

    def failure(self, error: BaseException, *, is_of_function: bool = False) -> blame.Failure:
        if isinstance(error, Lost):
            return blame.Disconnected("lost")
        if isinstance(error, Failed):
            return blame.StatementRefused(error.sqlstate, "refused")
        if isinstance(error, FunctionFailed):
            return blame.FunctionRaised(str(error))
        raise error
