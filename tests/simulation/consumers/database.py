"""The simulated PostgreSQL: rows of positions with their locks, effects, sessions that are cut, and failovers.

A statement arrives when the network has carried it, also if its sender stands still or has died meanwhile. What the
client sends last before a connection is lost may arrive or not, at once or late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from greenlet import getcurrent

from outbox.core.consumers import blame, holding
from outbox.core.consumers.crashes import PartitionOwner, Suspicion
from outbox.core.consumers.holding import Kept, Release, StoredMessage, Tries
from outbox.core.consumers.values import CommitInDoubt, ConsumerOptions, Fetched, Partition, Position
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


class Later(Exception):
    """The user's function has postponed the message."""


class ConnectionClosed(Exception):
    """The user's function has closed the connection, and then raised."""


@dataclass(frozen=True)
class HeldMessage:
    id: int
    partition: Partition
    topic_id: str
    message: Fetched
    reason: str
    since: float
    attempts: int = 0
    delays: int = 0
    next_at: float | None = None
    is_dead: bool = False
    wanted: str = ""

    @property
    def place(self) -> tuple[Partition, str, int]:
        return self.partition, self.topic_id, self.message.offset


class Server:
    """One server; after a failover it is dead, and a copy goes on."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.rows: dict[Partition, Position] = {}
        self.written_by: dict[Partition, int] = {}
        self.effects = Effects()
        self.locks: dict[Partition, Session] = {}
        self.owner_locks: dict[Partition, Session] = {}
        self.sessions: dict[Session, None] = {}
        self.held: dict[int, HeldMessage] = {}
        self.owners: dict[Partition, PartitionOwner] = {}
        self.seen: set[tuple[str, str]] = set()
        self.is_alive = True

    def copied(self) -> Server:
        copy = Server(self.world)
        copy.rows, copy.effects, copy.written_by = dict(self.rows), self.effects.copied(), dict(self.written_by)
        copy.held, copy.owners, copy.seen = dict(self.held), dict(self.owners), set(self.seen)
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
        self.held: dict[int, tuple[HeldMessage | None, HeldMessage | None]] = {}
        """Those that this transaction has changed: as it found them, and as they are for it."""
        self.seen: set[tuple[str, str]] = set()
        """Topics and ids that it adds, and those that it removes."""
        self.unseen: set[tuple[str, str]] = set()
        self.passed: list[tuple[Partition, bool]] = []
        """Owners whose message alone was handled, and whether it was the last one."""
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
        self._forget()

    def _forget(self) -> None:
        self.effects, self.moved, self.held, self.passed = [], {}, {}, []
        self.seen, self.unseen = set(), set()

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

        self._give_up_later(go_on, done)
        go_on()

    def wait_for_owners(self, partitions: Sequence[Partition], done: Callable[..., None], *, patient: bool) -> None:
        """For those who have locked these rows of owners."""

        def go_on() -> None:
            is_locked = any(self.server.owner_locks.get(partition, self) is not self for partition in partitions)
            self._waits = go_on if is_locked else None
            if not is_locked and self.is_alive:
                done()

        if not patient:
            self._give_up_later(go_on, done)
        go_on()

    def _give_up_later(self, go_on: Callable[[], None], done: Callable[..., None]) -> None:
        def give_up() -> None:
            if self._waits is go_on and self.is_alive:
                self._waits = None
                done(None, Failed("55P03"))

        self.world.after(LOCK_TIMEOUT_S, give_up)

    def write(self, moved: Mapping[Partition, tuple[int, Position]]) -> int:
        count = 0
        for partition, (before, position) in moved.items():
            _, row = self.moved.get(partition, (before, self.server.rows.get(partition)))
            if row is not None and row.next == before and self.server.locks.get(partition, self) is self:
                self.server.locks[partition] = self
                self.moved[partition] = before, position
                count += 1
        return count

    def commit(self, done: Callable[..., None]) -> None:
        self.commits = False
        if stolen := self.not_owned & self.moved.keys():
            raise Violation(f"{self.process.name} began a batch of {stolen} after the group had taken it back")
        for message in self.effects:
            self.server.effects.add(message)
        self.server.rows.update({partition: position for partition, (_, position) in self.moved.items()})
        self.server.written_by.update(dict.fromkeys(self.moved, self.xid))
        self._commit_held()
        self.server.seen = (self.server.seen - self.unseen) | self.seen
        self.world.note("commit", self.process.name, [message.uid for message in self.effects])
        self.process.committed += len(self.effects)
        self.world.committed[self.xid] = None
        self._forget()
        self._release()
        done()

    def _commit_held(self) -> None:
        server = self.server
        for id_, (before, after) in self.held.items():
            current = server.held.get(id_)
            if after is None or (before is not None and current is None):
                server.held.pop(id_, None)
            elif current is None or current is before:
                server.held[id_] = after
            elif before is not None and replace(current, wanted=before.wanted) == before:
                server.held[id_] = replace(after, wanted=current.wanted)  # an operator has waited for the row
            # Else its owner has: that change comes later.
        for partition, is_last in self.passed:
            row = server.owners.get(partition)
            if row is not None and row.owner == self.process.name:
                cleared = replace(row, suspect=None, deaths=0) if is_last else row
                server.owners[partition] = replace(cleared, begun=None)

    def rollback(self) -> None:
        self._forget()
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
        released = False
        for locks in (self.server.locks, self.server.owner_locks):
            for partition in [partition for partition, holder in locks.items() if holder is self]:
                del locks[partition]
                released = True
        if released:
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

        found = session.ask(act)
        return found, session.xid if found else 0

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


class Held:
    """A `HeldPort`."""

    def __init__(self, process: Any) -> None:
        self._process, self._world = process, process.world

    def _ask(self, session: Session, job: Callable[[dict[int, HeldMessage]], Any]) -> Any:
        def act(reply: Callable[..., None]) -> None:
            seen: dict[int, HeldMessage | None] = {
                **session.server.held,
                **{i: one for i, (_, one) in session.held.items()},
            }
            held = {id_: one for id_, one in seen.items() if one is not None}
            answer = job(held)
            for id_ in seen.keys() | held.keys():
                if (after := held.get(id_)) is not seen.get(id_):
                    before, _ = session.held.get(id_, (session.server.held.get(id_), None))
                    session.held[id_] = before, after
            reply(answer)

        return session.ask(act)

    def look(self, session: Session, consumer: str, partitions: Sequence[Partition]) -> dict[Partition, bool]:
        def act(reply: Callable[..., None]) -> None:
            found: dict[Partition, bool] = {}
            firsts: dict[tuple[Partition, bytes | None], int] = {}
            for one in sorted(session.server.held.values(), key=_id):
                if one.partition in partitions and (one.wanted or not one.is_dead):
                    is_first = not one.is_dead
                    if is_first and one.message.key is not None:
                        is_first = firsts.setdefault((one.partition, one.message.key), one.id) == one.id
                    is_due = is_first and one.next_at is not None and one.next_at <= self._world.now
                    found[one.partition] = found.get(one.partition, False) or bool(one.wanted) or is_due
            reply(found)

        return session.ask(act)  # type: ignore[no-any-return]

    def keys(
        self, session: Session, consumer: str, asked: Mapping[Partition, Sequence[bytes]]
    ) -> dict[Partition, frozenset[bytes]]:
        def job(held: dict[int, HeldMessage]) -> dict[Partition, frozenset[bytes]]:
            live = {(one.partition, one.message.key) for one in held.values() if not one.is_dead}
            found = {p: frozenset(key for key in keys if (p, key) in live) for p, keys in asked.items()}
            return {partition: keys for partition, keys in found.items() if keys}

        return self._ask(session, job)  # type: ignore[no-any-return]

    def keep(self, session: Session, options: ConsumerOptions, kept: Sequence[Kept]) -> list[int]:
        def job(held: dict[int, HeldMessage]) -> list[int]:
            places = {one.place: one for one in held.values()}
            ids = []
            for message, topic_id, fate in kept:
                partition = Partition(message.topic, message.partition)
                there = places.get((partition, topic_id, message.offset))
                if there is not None and not there.is_dead:
                    continue
                id_ = self._world.new_id() if there is None else there.id
                ids.append(id_)
                one = HeldMessage(id_, partition, topic_id, message, holding.WAITING, self._world.now)
                held[id_] = one if fate is None else self._failed(options, one, fate)
                places[one.place] = held[id_]
            return ids

        return self._ask(session, job)  # type: ignore[no-any-return]

    def _failed(self, options: ConsumerOptions, one: HeldMessage, fate: holding.Fate) -> HeldMessage:
        now = self._world.now
        return replace(
            one,
            reason=fate.reason,
            since=now if one.reason == holding.WAITING else one.since,
            attempts=fate.attempts,
            delays=fate.delays,
            next_at=None if fate.pause_s is None else now + fate.pause_s,
            is_dead=holding.is_dead(options, fate),
        )

    def take(self, session: Session, consumer: str, partition: Partition, limit: int) -> list[StoredMessage]:
        def job(held: dict[int, HeldMessage]) -> list[StoredMessage]:
            self._carry_out(held, partition)
            mine = sorted((one for one in held.values() if one.partition == partition and not one.is_dead), key=_id)
            keys: dict[bytes | int, list[HeldMessage]] = {}
            for one in mine:
                keys.setdefault(one.id if one.message.key is None else one.message.key, []).append(one)
            due = [k for k in keys.values() if k[0].next_at is not None and k[0].next_at <= self._world.now]
            due = sorted(due, key=lambda k: k[0].next_at)[:limit]
            due.sort(key=lambda k: (0, k[0].id) if k[0].message.key is None else (1, 0))
            each = max(1, limit // max(1, len(due)))
            rows = [one for behind in due for one in behind[:each]]
            return [StoredMessage(one.id, one.message, self._tries(one)) for one in rows]

        return self._ask(session, job)  # type: ignore[no-any-return]

    def _tries(self, one: HeldMessage) -> Tries:
        age_s = 0.0 if one.reason == holding.WAITING else self._world.now - one.since
        return Tries(one.attempts, one.delays, age_s)

    def _carry_out(self, held: dict[int, HeldMessage], partition: Partition) -> None:
        wanted = [one for one in held.values() if one.partition == partition and one.wanted]
        for one in wanted:
            if one.wanted == holding.RETRY:
                held[one.id] = replace(one, wanted="", is_dead=False, next_at=self._world.now)
            elif one.wanted == holding.SKIP:
                held[one.id] = replace(one, wanted="", is_dead=True, next_at=None)
            else:
                del held[one.id]
        for one in wanted:
            if one.wanted != holding.RETRY and one.message.key is not None:
                self._next(held, partition, one.message.key)

    def _next(self, held: dict[int, HeldMessage], partition: Partition, key: bytes) -> None:
        live = [
            one for one in held.values() if one.partition == partition and one.message.key == key and not one.is_dead
        ]
        if live and (first := min(live, key=_id)).next_at is None and first.reason == holding.WAITING:
            held[first.id] = replace(first, next_at=self._world.now)

    def change(self, session: Session, options: ConsumerOptions, partition: Partition, release: Release) -> None:
        def job(held: dict[int, HeldMessage]) -> None:
            for id_ in release.changes.gone:
                held.pop(id_, None)
            for id_, fate in release.changes.failed.items():
                if (one := held.get(id_)) is not None:
                    held[id_] = self._failed(options, one, fate)
            for key in release.changes.heads:
                self._next(held, partition, key)

        self._ask(session, job)

    def give_back(self, session: Session, ids: Sequence[int]) -> None:
        def job(held: dict[int, HeldMessage]) -> None:
            for id_ in dict.fromkeys(ids):
                if (one := held.get(id_)) is not None and one.reason == holding.FAILED:
                    attempts, next_at = max(0, one.attempts - 1), self._world.now + 1.0
                    held[id_] = replace(one, attempts=attempts, is_dead=False, next_at=next_at)

        self._ask(session, job)


class Seen:
    """A `SeenPort`. Messages of one id are all of one partition, so no other transaction adds it at the same time."""

    def __init__(self, process: Any) -> None:
        self._process = process

    def add(self, session: Session, consumer: str, topic: str, ids: Sequence[str]) -> list[str]:
        def act(reply: Callable[..., None]) -> None:
            there = (session.server.seen - session.unseen) | session.seen
            new = [id_ for id_ in dict.fromkeys(ids) if (topic, id_) not in there]
            session.seen.update((topic, id_) for id_ in new)
            reply(new)

        return session.ask(act)  # type: ignore[no-any-return]

    def remove(self, session: Session, consumer: str, topic: str, ids: Sequence[str]) -> None:
        def act(reply: Callable[..., None]) -> None:
            removed = {(topic, id_) for id_ in ids}
            session.seen -= removed
            session.unseen |= removed
            reply()

        session.ask(act)

    def tidy(self, session: Session, consumer: str) -> bool:
        return False


class Owners:
    """An `OwnersPort`."""

    def __init__(self, process: Any) -> None:
        self._process, self._world, self.owner = process, process.world, process.name

    def load(self, session: Session, consumer: str, partitions: Sequence[Partition]) -> dict[Partition, PartitionOwner]:
        def act(reply: Callable[..., None]) -> None:
            rows = {p: row for p, row in session.server.owners.items() if p in partitions}
            living = {process.name for process in self._world.processes if process.is_alive}
            reply({p: replace(row, is_alive=row.owner in living) for p, row in rows.items()})

        return session.ask(act)  # type: ignore[no-any-return]

    def own(self, session: Session, consumer: str, owned: Mapping[Partition, tuple[int, Suspicion]]) -> None:
        def act(reply: Callable[..., None]) -> None:
            def go_on(_: Any = None, error: BaseException | None = None) -> None:
                if error is None:
                    for partition, (next_, found) in owned.items():
                        session.server.owners[partition] = PartitionOwner(
                            self.owner, is_clean=False, next=next_, suspect=found.suspect, deaths=found.deaths
                        )
                reply(None, error)

            session.wait_for_owners(list(owned), go_on, patient=False)

        session.ask(act)

    def begin(self, session: Session, consumer: str, partition: Partition, offset: int) -> None:
        self._update(session, [partition], begun=offset)

    def given_up(self, session: Session, consumer: str, partition: Partition) -> None:
        self._update(session, [partition], begun=None)

    def passed(self, session: Session, consumer: str, partition: Partition, *, is_last: bool) -> None:
        def act(reply: Callable[..., None]) -> None:
            mine = self._mine(session, [partition])

            def go_on() -> None:
                session.server.owner_locks.update(dict.fromkeys(mine, session))
                session.passed += [(one, is_last) for one in mine]
                reply()

            session.wait_for_owners(mine, go_on, patient=True)

        session.ask(act)

    def leave(self, session: Session, consumer: str, partitions: Sequence[Partition]) -> None:
        self._update(session, partitions, is_clean=True, begun=None)

    def _update(self, session: Session, partitions: Sequence[Partition], **given: Any) -> None:
        def act(reply: Callable[..., None]) -> None:
            def go_on() -> None:
                for partition in self._mine(session, partitions):
                    session.server.owners[partition] = replace(session.server.owners[partition], **given)
                reply()

            session.wait_for_owners(self._mine(session, partitions), go_on, patient=True)

        session.ask(act)

    def _mine(self, session: Session, partitions: Sequence[Partition]) -> list[Partition]:
        owners = session.server.owners
        return [p for p in partitions if p in owners and owners[p].owner == self.owner]


def _id(one: HeldMessage) -> int:
    return one.id


class Transaction:
    """A `TransactionPort`."""

    def __init__(self, process: Any) -> None:
        self._process, self._world = process, process.world
        self.session: Session | None = None
        self._doubtful: Session | None = None
        self.hooks: list[Callable[[], None]] = []
        self._marked = 0, 0
        """Effects and transaction, when the function was called."""
        self._seen: tuple[set[tuple[str, str]], ...] = (set(), set())
        self._hooks = 0
        self._is_refused = False
        """A statement of it was."""
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
        self.hooks, self._is_refused = [], False
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

    def mark(self) -> None:
        session = self.session
        assert session is not None
        self._marked = len(session.effects), session.xid
        self._seen, self._hooks = (set(session.seen), set(session.unseen)), len(self.hooks)
        session.ask(lambda reply: reply())

    def keep(self) -> str:
        if self.session is None:
            return "the connection was closed"
        self.session.ask(lambda reply: reply())
        if self._marked[1] != self.session.xid:
            self._is_refused = True
            raise Failed("3B001")
        return ""

    def undo(self) -> bool:
        session = self.session
        if session is None or not session.is_connected or self._marked[1] != session.xid:
            return False

        def act(reply: Callable[..., None]) -> None:
            del session.effects[self._marked[0] :]
            session.seen, session.unseen = map(set, self._seen)
            reply()

        try:
            session.ask(act)
        except Lost:
            return False
        del self.hooks[self._hooks :]
        return True

    def is_committed(self, xid: int) -> bool | None:
        session = self.connection()

        def act(reply: Callable[..., None]) -> None:
            is_under_way = any(other.xid == xid and other is not session for other in session.server.sessions)
            reply(None if is_under_way else xid in self._world.committed)

        return session.ask(act)  # type: ignore[no-any-return]

    def commit(self) -> list[Callable[[], None]]:
        session, hooks = self.session, self.hooks
        assert session is not None
        try:
            session.ask(session.commit, is_commit=True)
        except Lost:
            self._doubtful = session
            self._process.passed("doubt", 10 * self._world.faults.point)
            raise CommitInDoubt(hooks) from None
        session.xid = 0
        return hooks

    def is_replaced(self, xid: int) -> bool:
        session = self.session
        is_another = session is not None and session.is_connected and session.xid != xid and not self._is_refused
        self.rollback()
        return is_another or bool(self.is_committed(xid))

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
        if isinstance(error, FunctionFailed | ConnectionClosed):
            return blame.FunctionRaised(str(error))
        if isinstance(error, Later):
            return blame.Postponed("not yet", until_s=3600.0)
        raise error
