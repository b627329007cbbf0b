"""The simulated PostgreSQL: transactions and snapshots, commits that a crash may lose, the guarded purge, and
connections whose statements are slow, executed without an answer, or executed long after their sender gave up."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from outbox.core import ledger
from outbox.core.frontier import Snapshot
from outbox.core.times import time_of
from outbox.core.verdict import State
from tests.simulation.exactly_once.checkers import Checkers, Written
from tests.simulation.exactly_once.tasks import Future, Steps
from tests.simulation.world import World

STATEMENT_TIMEOUT_S = 0.8
TOPIC = "orders"
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class DatabaseError(Exception):
    """The statement failed, or nobody knows whether it did."""


@dataclass(frozen=True, slots=True)
class Stored:
    row: ledger.Row
    create_time: int
    lane_hash: int

    @property
    def uid(self) -> int:
        return int(self.row[3] or "")


@dataclass(frozen=True, slots=True)
class Page:
    snapshot: Snapshot
    sequence: int
    purged: dict[int, int]
    read_at: datetime
    filenode: int
    rows: list[Stored]


@dataclass(frozen=True, slots=True)
class Found:
    count: int
    digest: int
    newest: int | None
    filenode: int


@dataclass
class Kept:
    """What a crash, and a copy of the server, keep."""

    rows: dict[int, Stored] = field(default_factory=dict)
    sequence: int = 0
    purged: dict[int, int] = field(default_factory=dict)
    filenode: int = 1
    state: State = field(default_factory=lambda: State(1))


class Database:
    def __init__(self, world: World, checkers: Checkers, lanes: int) -> None:
        self.world, self._checkers = world, checkers
        self.identity = UUID(int=7)
        self.now = Kept(state=State(lanes))
        self.incarnation = 0
        self.readers = 0
        self.guarded = True
        self.supplied: Random | None = None
        self._next_xid = 100
        self._xmax = 100
        self._running: set[int] = set()
        self.writers: set[int] = set()
        self._unflushed: list[int] = []
        self._flushed_sequence = 0

    # ---- applications

    def begin(self, *, writes: bool = True) -> int:
        xid = self._next_xid
        self._next_xid += 1
        self._running.add(xid)
        if writes:
            self.writers.add(xid)
        return xid

    def draw_id(self) -> int:
        self.now.sequence += 1
        return self.now.sequence

    def is_running(self, xid: int) -> bool:
        """A transaction ends with its server."""
        return xid in self._running

    def end(self, xid: int, records: Sequence[Written] = (), *, is_flushed: bool = True) -> None:
        self._running.discard(xid)
        self.writers.discard(xid)
        self._xmax = max(self._xmax, xid + 1)
        for record in records:
            row = (record.id, TOPIC, record.key, str(record.uid), None, None, None)
            hashed = self.world.lane_of(record.key) if record.key else record.id
            self.now.rows[record.id] = Stored(row, self.create_time(), hashed)
        self._checkers.inserted(records)
        if records and is_flushed:
            self.flush()
        else:
            self._unflushed += [record.id for record in records]

    def flush(self) -> None:
        self._unflushed.clear()
        self._flushed_sequence = self.now.sequence

    def clock(self) -> datetime:
        return _EPOCH + timedelta(seconds=self.world.now)

    def create_time(self) -> int:
        """By the server's clock, or as the writer supplies it: within some seconds of that, ahead or behind."""
        supplied_s = self.supplied.uniform(-5.0, 5.0) if self.supplied is not None else 0.0
        return time_of(self.clock() + timedelta(seconds=supplied_s))

    # ---- what befalls it

    def crash(self) -> None:
        """Restarted at once: what was not on the disk is gone, ids are drawn a second time."""
        self.incarnation += 1
        lost = [self.now.rows.pop(id_) for id_ in self._unflushed if id_ in self.now.rows]
        self._checkers.crashed(stored.uid for stored in lost)
        self._unflushed.clear()
        self._end_all()
        self.now.sequence = self._flushed_sequence

    def truncate(self) -> bool:
        """With RESTART IDENTITY. It waits for whoever uses the table."""
        if self.writers or self.readers:
            return False
        self._checkers.withdrawn.update(stored.uid for stored in self.now.rows.values())
        self.now.rows.clear()
        self.now.filenode += 1
        self.now.sequence = 0
        self.flush()
        return True

    def copy(self) -> Kept:
        return copy.copy(self.now), dict(self.now.rows), dict(self.now.purged)  # type: ignore[return-value]

    def fail_over(self, kept: Any) -> None:
        """A lagging copy takes over: whatever was not copied never was."""
        self.incarnation += 1
        before = self.now
        self.now, self.now.rows, self.now.purged = kept
        still = {stored.uid for stored in self.now.rows.values()}
        self._checkers.withdrawn.update(s.uid for s in before.rows.values() if s.uid not in still)
        self._end_all()
        self.flush()

    def _end_all(self) -> None:
        self._running.clear()
        self.writers.clear()
        self._next_xid += 5
        self._xmax = self._next_xid

    # ---- statements

    def snapshot(self) -> Snapshot:
        return Snapshot(tuple(sorted(x for x in self._running if x < self._xmax)), self._xmax, 0)

    def select(
        self, look: int, lanes: Sequence[int], count: int, excluded: Collection[int], limit: int
    ) -> list[Stored]:
        out = set(excluded)
        found = [
            stored
            for id_, stored in sorted(self.now.rows.items())
            if id_ > look and id_ not in out and stored.lane_hash % count in lanes
        ]
        return sorted(found[:limit], key=lambda stored: stored.lane_hash % count)

    def next_xid(self) -> int:
        return self._next_xid

    def purged(self, lane: int) -> int:
        return self.now.purged.setdefault(lane, 0)

    def purge(self, lane: int, batch: int, ids: Sequence[int], filenode: int, *, compared: bool = False) -> int:
        highest = ids[-1] if ids and not compared else 0
        now = self.now
        guards = now.purged.get(lane) == batch - 1 and now.filenode == filenode and now.sequence >= highest
        if self.guarded and not guards:
            return 0
        now.purged[lane] = batch
        deleted = [now.rows.pop(id_) for id_ in ids if id_ in now.rows]
        for stored in deleted:
            self._checkers.purged(stored.uid)
        self.flush()
        return len(deleted)

    def look_up(self, ids: Sequence[int]) -> Found:
        found = [self.now.rows[id_] for id_ in ids if id_ in self.now.rows]
        newest = max((stored.create_time for stored in found), default=None)
        return Found(len(found), ledger.digest(stored.row for stored in found), newest, self.now.filenode)


class Connection:
    """One statement at a time."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self._world, self.database = process.world, process.world.database
        self._incarnation = self.database.incarnation
        self.opened_at = process.world.now
        self._is_broken = False

    def execute(self, statement: Callable[[], Any]) -> Steps:
        """Its result; a failure breaks the connection, and the statement may be executed all the same, or later."""
        world, faults, answer = self._world, self._world.faults, Future()
        delay = world.random.uniform(0.0005, 0.004)
        if world.chance(faults.statement_slow):
            delay = world.random.uniform(0.05, 3.0)
        if not self._process.table_ok or world.chance(faults.statement_error):
            world.after(delay, lambda: answer.settle(error=DatabaseError("not executed")))
        else:
            world.after(delay, lambda: self._arrive(statement, answer))
        done = yield answer, STATEMENT_TIMEOUT_S
        if not done or answer.error is not None:
            self._is_broken = True
            raise DatabaseError(str(answer.error or "timed out"))
        return answer.value

    def _arrive(self, statement: Callable[[], Any], answer: Future) -> None:
        world = self._world
        if self._incarnation != self.database.incarnation:
            answer.settle(error=DatabaseError("the server was restarted"))
            return
        value = statement()
        if world.chance(world.faults.answer_lost) or not self._process.table_ok:
            world.after(0.05, lambda: answer.settle(error=DatabaseError("executed, and the answer was lost")))
        else:
            world.after(world.random.uniform(0.0005, 0.004), lambda: answer.settle(value))

    def read(self, look: int, lanes: Sequence[int], count: int, excluded: Collection[int], limit: int) -> Steps:
        """One statement in two moments: its snapshot, and later the sequence, the next xid and the clock."""
        database, world, answer = self.database, self._world, Future()

        def begin() -> None:
            database.readers += 1
            snapshot, rows = database.snapshot(), database.select(look, lanes, count, excluded, limit)
            purged = {lane: database.purged(lane) for lane in lanes}
            world.after(world.random.choice((0.0, 0.003)) * world.random.random(), lambda: end(snapshot, rows, purged))

        def end(snapshot: Snapshot, rows: list[Stored], purged: dict[int, int]) -> None:
            database.readers -= 1
            now = database.now
            seen = Snapshot(snapshot.running, snapshot.xmax, database.next_xid())
            answer.settle(Page(seen, now.sequence, purged, database.clock(), now.filenode, rows))

        yield from self.execute(begin)
        if not answer.done:
            yield answer
        if self._incarnation != database.incarnation:
            raise DatabaseError("the server was restarted")
        return answer.value
