"""Simulated PostgreSQL servers: transactions and snapshots, commits that a crash may lose, the guarded purge, copies
that are behind. They obey; `database` has the effects on a connection, and the scenario chooses the faults.

The statements are those of `outbox.edges`, with their guards. `tests/simulation/conformance` asks both the same, and
compares the answers.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import psycopg

from outbox.core.exactly_once import ledger
from outbox.core.exactly_once.decisions import StateRow
from outbox.core.frontier import Snapshot
from outbox.core.holds.crashes import Care, Watch
from outbox.core.holds.values import DeadRecord, HoldActions
from outbox.core.times import time_of
from outbox.edges.postgres.exactly_once.companions import Found
from outbox.edges.postgres.exactly_once.reader import LeftOut
from outbox.edges.postgres.exactly_once.sweeper import Below
from outbox.edges.postgres.exactly_once.sweeper import Found as Missed
from tests.simulation.exactly_once.checkers import DEAD, DISCARDED, Checkers, Written
from tests.simulation.exactly_once.holds import Hold, HoldTable

IDENTITY = UUID(int=7)
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Locked(Exception):
    """Another transaction has the row: the statement waits."""


@dataclass(frozen=True, slots=True)
class Stored:
    row: ledger.Row
    create_time: int
    lane_hash: int

    @property
    def uid(self) -> int:
        return int(self.row[3] or "")


@dataclass(frozen=True, slots=True)
class Dead:
    """A dead letter."""

    stored: Stored
    dead_record: DeadRecord
    history: tuple[dict[str, Any], ...]


@dataclass
class Kept:
    """What a copy of the server has."""

    rows: dict[int, Stored] = field(default_factory=dict)
    sequence: int = 0
    purged: dict[int, int] = field(default_factory=dict)
    filenode: int = 1
    state: StateRow = field(default_factory=lambda: StateRow(1))
    holds: dict[int, Hold] = field(default_factory=dict)
    hold_id: int = 0
    dead: dict[int, Dead] = field(default_factory=dict)
    """Dead letters, by the ids of their records."""
    watch: dict[int, Watch] = field(default_factory=dict)


class Transaction:
    """Of a harvester: nothing of it is seen before it is committed."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.moved: dict[int, int] = {}
        self.deleted: dict[int, None] = {}
        self.leaving: dict[int, DeadRecord | None] = {}
        """Of these the ones that are dead letters then, or deleted for good: no purge has sent them."""
        self.confirmed: list[tuple[int, int]] = []
        """Holds, each with the lane that respects it."""
        self.is_over = False

    def commit(self, server: Server) -> None:
        if self.is_over:
            raise psycopg.errors.InFailedSqlTransaction("the transaction was ended before")
        self.end()
        server.carry_out(self)

    def locks(self, ids: Collection[int], hold_ids: Collection[int]) -> bool:
        """Rows of the table, and holds, that it has changed: whoever wants them waits."""
        return any(id_ in self.deleted for id_ in ids) or any(id_ in hold_ids for id_, _ in self.confirmed)

    def end(self) -> None:
        self.is_over = True
        for lane in [lane for lane, holder in self.server.held.items() if holder is self]:
            del self.server.held[lane]


class Server:
    """One server in one life of its data. `started` tells it from every other, as the start of its postmaster does."""

    def __init__(self, postgres: Postgres, now: Kept, started: int) -> None:
        self._postgres, self.world, self._checkers = postgres, postgres.world, postgres.checkers
        self.now, self.started = now, started
        self.is_gone = False
        self.crashes = self.readers = 0
        self.held: dict[int, Transaction] = {}
        self.holds = HoldTable(self)
        self.walked: Counter[int] | None = None
        """How often reads have come by each record, where that counts."""
        self.listeners: dict[Any, None] = {}
        self.sessions: dict[Any, str] = {}
        """Of harvesters that show by them that they live."""
        self._next_xid = self._xmax = 100
        self._running: set[int] = set()
        self.writers: set[int] = set()
        self._unflushed: list[int] = []
        self._flushed_sequence = now.sequence

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
        return xid in self._running and not self.is_gone

    def end(self, xid: int, records: Sequence[Written] = (), *, is_flushed: bool = True) -> None:
        self._running.discard(xid)
        self.writers.discard(xid)
        self._xmax = max(self._xmax, xid + 1)
        for record in records:
            self.now.rows[record.id] = self.stored(record)
        self._checkers.inserted(records)
        if records:
            self.notify()
        if records and is_flushed:
            self.flush()
        else:
            self._unflushed += [record.id for record in records]

    def stored(self, record: Written, create_time: int | None = None) -> Stored:
        row = (record.id, record.topic, record.key, str(record.uid).ljust(record.size), None, None, None)
        hashed = self.world.lane_of(record.key) if record.key else record.id
        return Stored(row, self.create_time() if create_time is None else create_time, hashed)

    def change(self, record: Written) -> None:
        """An operator has edited what this row said."""
        before = self.now.rows[record.id]
        self.now.rows[record.id] = self.stored(record, before.create_time)
        self._checkers.edited(before.uid, record)
        self.flush()

    def notify(self) -> None:
        for listener in self.listeners:
            if not self.world.chance(self.world.faults.notification_lost):
                self.world.after(self.world.latency(), listener.hear)

    def flush(self) -> None:
        self._unflushed.clear()
        self._flushed_sequence = self.now.sequence

    def clock(self) -> datetime:
        return _EPOCH + timedelta(seconds=self.world.now)

    def create_time(self) -> int:
        """By the server's clock, or as the writer supplies it: within some seconds of that, ahead or behind."""
        supplied = self._postgres.supplied
        return time_of(self.clock() + timedelta(seconds=supplied.uniform(-5.0, 5.0) if supplied is not None else 0.0))

    # ---- its faults

    def crash(self, *, restarts: bool) -> None:
        """What was not on the disk is gone, ids are drawn a second time. A backend that dies takes every session with
        it, and the server goes on under the same start."""
        self.crashes += 1
        if restarts:
            self.started = self._postgres.new_start()
        lost = [self.now.rows.pop(id_) for id_ in self._unflushed if id_ in self.now.rows]
        self._checkers.crashed(stored.uid for stored in lost)
        self._unflushed.clear()
        self.end_all()
        self.now.sequence = self._flushed_sequence

    def copied(self) -> Kept:
        """What a copy that follows has at this moment: only what is on the disk is sent to it."""
        kept = copy.copy(self.now)
        kept.rows = {id_: stored for id_, stored in self.now.rows.items() if id_ not in self._unflushed}
        kept.purged, kept.sequence = dict(self.now.purged), self._flushed_sequence
        kept.holds, kept.dead, kept.watch = dict(self.now.holds), dict(self.now.dead), dict(self.now.watch)
        return kept

    def truncate(self) -> bool:
        """With RESTART IDENTITY. It waits for whoever uses the table."""
        if self.writers or self.readers or self.held:
            return False
        self._checkers.withdrawn.update(stored.uid for stored in self.now.rows.values())
        self.now.rows.clear()
        self.now.filenode += 1
        self.now.sequence = 0
        self.flush()
        return True

    def end_all(self) -> None:
        self._running.clear()
        self.writers.clear()
        for holder in list(self.held.values()):
            holder.end()
        self._next_xid += 5
        self._xmax = self._next_xid

    # ---- what a page shows

    def snapshot(self) -> Snapshot:
        return Snapshot(tuple(sorted(x for x in self._running if x < self._xmax)), self._xmax, 0)

    def next_xid(self) -> int:
        return self._next_xid

    def select(
        self, look: int, lanes: Sequence[int], count: int, excluded: Collection[int], limit: int, left_out: LeftOut
    ) -> list[Stored]:
        out, asked = set(excluded), [lane for lane in lanes if lane not in left_out.lanes]
        if self.walked is not None:
            self.walked.update(s.uid for id_, s in self.now.rows.items() if id_ > look and s.lane_hash % count in lanes)
        found = [
            stored
            for id_, stored in sorted(self.now.rows.items())
            if id_ > look
            and id_ not in out
            and stored.lane_hash % count in asked
            and stored.row[1] not in left_out.topics
        ]
        return sorted(found[:limit], key=lambda stored: stored.lane_hash % count)

    def look_at(self, first_block: int, blocks: int, below: Below, count: int) -> tuple[list[Missed], int]:
        """What these blocks show, and how many the table has."""
        size, excluded = self._postgres.rows_per_block, set(below.excluded)
        lanes = [lane for lane in below.lanes if lane not in below.left_out.lanes]
        found = [
            (id_, *stored.row[1:3], stored.lane_hash % count)
            for id_, stored in sorted(self.now.rows.items())
            if first_block <= id_ // size < first_block + blocks
            and id_ <= below.read_to
            and id_ not in excluded
            and stored.lane_hash % count in lanes
            and stored.row[1] not in below.left_out.topics
        ]
        return found, (self.now.sequence + size) // size if self.now.rows else 0

    # ---- m, and the rows of a batch

    def purged(self, lane: int) -> int:
        return self.now.purged.setdefault(lane, 0)

    def purge(
        self, transaction: Transaction, lane: int, batch: int, ids: Sequence[int], filenode: int, *, compared: bool
    ) -> tuple[bool, int]:
        """Whether m is moved, and how many rows are deleted."""
        now, highest = self.now, ids[-1] if ids and not compared else 0
        last = transaction.moved.get(lane, now.purged.get(lane))
        guards = last == batch - 1 and now.filenode == filenode and now.sequence >= highest
        if self._postgres.guarded and not guards:
            return False, 0
        if self.held.get(lane, transaction) is not transaction:
            raise Locked
        self.held[lane] = transaction
        transaction.moved[lane] = batch
        found = [id_ for id_ in ids if id_ in now.rows and id_ not in transaction.deleted]
        transaction.deleted.update(dict.fromkeys(found))
        return True, len(found)

    def purge_plain(self, lane: int, batch: int, ids: Sequence[int], filenode: int) -> int:
        if not self._postgres.is_plain:
            return 0
        by_itself = Transaction(self)
        _, deleted = self.purge(by_itself, lane, batch, ids, filenode, compared=False)
        by_itself.commit(self)
        return deleted

    def carry_out(self, transaction: Transaction) -> None:
        self.now.purged.update(transaction.moved)
        for id_ in transaction.deleted:
            stored = self.now.rows.pop(id_, None)
            if stored is None:
                continue
            if id_ in transaction.leaving:
                self._leaves(stored, transaction.leaving[id_])
            else:
                self._checkers.purged(stored.uid)
        for hold_id, lane in transaction.confirmed:
            self.holds.confirm(hold_id, lane)
        if transaction.moved or transaction.deleted:
            self.flush()

    def _leaves(self, stored: Stored, dead_record: DeadRecord | None) -> None:
        id_ = stored.row[0]
        self._checkers.leaves(stored.uid, DISCARDED if dead_record is None else DEAD)
        if dead_record is not None:
            histories = [hold.history for hold in self.holds.of_record([id_])]
            self.now.dead[id_] = Dead(stored, dead_record, histories[0] if histories else dead_record.hold.history)
        self.holds.lift([id_])

    def run(self, transaction: Transaction, lane: int, hold_actions: HoldActions) -> None:
        """What the lane deletes or promises beside its purge, see `outbox.edges.postgres.holds`."""
        for dead_record in hold_actions.dead_records:
            if self._is_there(transaction, dead_record.hold.head) and not self.holds.is_of_another(
                dead_record.hold.head
            ):
                transaction.deleted[dead_record.hold.head] = None
                transaction.leaving[dead_record.hold.head] = dead_record
        for id_ in hold_actions.discarded:
            if self._is_there(transaction, id_) and self.holds.is_discarded(id_):
                transaction.deleted[id_] = transaction.leaving[id_] = None
        transaction.confirmed += [(id_, lane) for id_ in hold_actions.confirmed]

    def _is_there(self, transaction: Transaction, id_: int) -> bool:
        return id_ in self.now.rows and id_ not in transaction.deleted

    def may_change(self, ids: Collection[int], hold_ids: Collection[int] = ()) -> bool:
        """Whether nothing has locked these rows and holds."""
        return not any(holder.locks(ids, hold_ids) for holder in self.held.values())

    # ---- crashes

    def watched(self, lane: int) -> Watch | None:
        found = self.now.watch.get(lane)
        if found is None:
            return None
        return replace(found, is_alive=found.owner in self.sessions.values())

    def own(self, lane: int, owner: str, care: Care) -> None:
        if care.poison is not None:
            self.holds.poison(care.poison, care.crashes)
        self.now.watch[lane] = Watch(owner, False, care.crashes, (), care.suspects)
        self.flush()

    def note(self, lane: int, owner: str, **changes: Any) -> None:
        """Of the lane's owner, who may be another one by now."""
        found = self.now.watch.get(lane)
        if found is not None and found.owner == owner:
            self.now.watch[lane] = replace(found, **changes)
            self.flush()

    def kept(self, transaction: Transaction, lane: int, batch: int, ids: Sequence[int], filenode: int) -> int:
        left = [id_ for id_ in ids if id_ in self.now.rows and id_ not in transaction.deleted]
        is_purged = transaction.moved.get(lane, self.now.purged.get(lane)) == batch
        return len(left) if is_purged and self.now.filenode == filenode else 0

    def look_up(self, ids: Sequence[int]) -> Found:
        found = [self.now.rows[id_] for id_ in ids if id_ in self.now.rows]
        newest = max((stored.create_time for stored in found), default=None)
        return Found(len(found), ledger.digest(stored.row for stored in found), newest, self.now.filenode)

    # ---- the lane count

    def request(self, lanes: int) -> None:
        self._set(wanted=lanes)

    def refuse_request(self, lanes: int) -> None:
        if self.now.state.wanted == lanes:
            self._set(wanted=None)

    def close_lanes(self, lanes: int) -> bool:
        state = self.now.state
        if state.resize_to is not None or state.wanted != lanes:
            return False
        self._set(resize_to=lanes, wanted=None, resize_no=self._new_number(0))
        return True

    def close_all_lanes(self, before: int, newest: int) -> bool:
        state = self.now.state
        if state.resize_no != before:
            return False
        wanted = state.wanted or (state.resize_to if state.resize_to != state.lane_count else None)
        self._set(wanted=wanted, resize_to=state.lane_count, resize_no=self._new_number(newest))
        return True

    def open_lanes(self, change: int, lanes: int, settled: Mapping[int, int]) -> bool:
        state, purged = self.now.state, self.now.purged
        if state.resize_to is None or state.resize_no != change:
            return False
        if any(purged.get(lane, 0) < batch for lane, batch in settled.items()):
            return False
        self._set(lane_count=lanes, resize_to=None)
        return True

    def _new_number(self, newest: int) -> int:
        return max(self.now.state.resize_no + 1, newest + 1, int(self.world.now * 1_000_000))

    def _set(self, **changes: Any) -> None:
        self.now.state = replace(self.now.state, **changes)
        self.flush()


class Postgres:
    """The address of the database: whoever connects reaches the server that has taken over last."""

    def __init__(self, world: Any, checkers: Checkers, lanes: int) -> None:
        self.world, self.checkers = world, checkers
        self.guarded = True
        self.rows_per_block = 4
        self.is_plain = True
        """Nothing on the table can keep a row from being deleted."""
        self.supplied: Random | None = None
        self._starts = 0
        self.primary = Server(self, Kept(state=StateRow(lanes)), self.new_start())
        self.old: list[Server] = []

    def new_start(self) -> int:
        self._starts += 1
        return self._starts

    def fail_over(self, kept: Kept, *, lingers: bool) -> None:
        """A lagging copy takes over: whatever was not copied never was. The old server may stay for those who are
        connected to it."""
        before = self.primary
        after = self.primary = Server(self, kept, self.new_start())
        after._next_xid = after._xmax = before.next_xid() + 5
        still = {stored.uid for stored in kept.rows.values()}
        self.checkers.withdrawn.update(s.uid for s in before.now.rows.values() if s.uid not in still)
        before.end_all()  # applications come to the new one
        if lingers:
            self.old.append(before)
        else:
            self._remove(before)

    def remove_old(self) -> None:
        old, self.old = self.old, []
        for server in old:
            self._remove(server)

    def _remove(self, server: Server) -> None:
        server.is_gone = True
        server.crashes += 1
        server.end_all()
