"""The simulated table with marks, its holds and dead letters, and the sessions that own lanes.

The statements are those of `outbox.edges.postgres.at_least_once.marks` and `outbox.edges.postgres.holds`, with what
they guard. Each is atomic. Within a transaction it takes effect at the end; until then nobody else changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from outbox.core.holds.values import HoldActions
from outbox.edges.postgres.at_least_once.marks import MarkedRow, Scopes
from tests.simulation.at_least_once.checkers import Checkers
from tests.simulation.exactly_once.holds import Hold, HoldTable
from tests.simulation.exactly_once.postgres import Locked

TOPIC = "orders"


@dataclass(slots=True)
class Stored:
    id: int
    key: str
    sequence: int
    create_time: int
    lane_hash: int
    leader_id: UUID | None = None

    @property
    def row(self) -> tuple[Any, ...]:
        """The row as the table of holds sees it."""
        return self.id, TOPIC, self.key

    def shown(self) -> MarkedRow:
        created = self.create_time.to_bytes(8, "big")
        return MarkedRow(self.id, TOPIC, self.key, b"%d" % self.id, None, None, created)


class Transaction:
    def __init__(self, table: Table) -> None:
        self._table, self._effects = table, list[Callable[[], None]]()
        self.is_over = False

    def add(self, effect: Callable[[], None]) -> None:
        if not self.is_over:
            self._table.locked_by = self
            self._effects.append(effect)

    def commit(self) -> None:
        if not self.is_over:
            self.end()
            for effect in self._effects:
                effect()

    def end(self) -> None:
        self.is_over = True
        if self._table.locked_by is self:
            self._table.locked_by = None


class Table:
    crashes, started = 0, 1

    def __init__(self, world: Any, checkers: Checkers) -> None:
        self.world, self._checkers = world, checkers
        self.rows: dict[int, Stored] = {}
        self.dead: dict[int, str] = {}
        self.hold_id = self._last_id = self._clock = 0
        self.holds_by_id: dict[int, Hold] = {}
        self.hold_table = HoldTable(_Server(self))
        self.locked_by: Transaction | None = None
        self.sessions: dict[Any, str] = {}  # of named owners: there are none
        self.listeners: dict[Any, None] = {}
        self.takeovers: dict[int, dict[Any, int]] = {}
        """Of each lane the sessions that hold its lock, with their epochs."""
        self.guarded = self.takeovers_fence = True

    # ---- applications

    def draw(self, key: str, sequence: int) -> Stored:
        self._last_id += 1
        self._clock += 1
        lane_hash = self.world.lane_of(key) if key else self._last_id
        return Stored(self._last_id, key, sequence, self._clock, lane_hash)

    def insert(self, rows: Sequence[Stored]) -> None:
        for row in rows:
            self.rows[row.id] = row
        self._checkers.committed(rows)

    # ---- harvesters

    def take(self, session: Any, lane: int, epoch: int) -> int | None:
        """The newer epoch that refuses it."""
        self._wait_for(None)
        found = self.takeovers.setdefault(lane, {})
        others = {other: its for other, its in found.items() if other is not session and other.is_there}
        if newer := [its for its in others.values() if its > epoch]:
            return max(newer)
        if self.takeovers_fence:
            for other in others:
                other.lose()
            found.clear()
        found[session] = epoch
        return None

    def mark(
        self, session: Any, lane: int, leader: UUID, limit: int, exclude: Collection[tuple[str, str]], held: Scopes
    ) -> list[MarkedRow]:
        self._wait_for(None)
        if held.is_all:
            return []
        found = [
            row
            for _, row in sorted(self.rows.items())
            if row.leader_id != leader
            and row.lane_hash % self.world.lanes == lane
            and (TOPIC, row.key) not in exclude
            and (TOPIC, row.key) not in held.keys
            and TOPIC not in held.topics
            and row.id not in held.ids
        ][:limit]
        for row in found:
            row.leader_id = leader
        takeovers = self.takeovers.get(lane, {})
        newest = max((epoch for other, epoch in takeovers.items() if other.is_there), default=-1)
        self._checkers.marked(lane, takeovers.get(session, -1), newest)
        shown = [row.shown() for row in found]
        self.world.random.shuffle(shown)  # RETURNING promises no order
        return shown

    def fetch(self, leader: UUID, ids: Sequence[int]) -> list[MarkedRow]:
        return [self.rows[id_].shown() for id_ in reversed(self.look_up(leader, ids))]

    def look_up(self, leader: UUID, ids: Sequence[int]) -> list[int]:
        return [id_ for id_ in ids if id_ in self.rows and self.rows[id_].leader_id == leader]

    def sweep(self, leader: UUID, highest: int | None, limit: int) -> list[int]:
        found = (id_ for id_, row in sorted(self.rows.items()) if row.leader_id == leader)
        return [id_ for id_ in found if highest is None or id_ <= highest][:limit]

    def purge(self, leader: UUID, ids: Sequence[int]) -> list[int]:
        self._wait_for(None)
        return [self.rows.pop(id_).id for id_ in ids if self._touch(id_, leader)]

    def reset(self, leader: UUID, ids: Sequence[int]) -> int:
        self._wait_for(None)
        mine = [id_ for id_ in ids if self._touch(id_, leader)]
        for id_ in mine:
            self.rows[id_].leader_id = None
        return len(mine)

    def _touch(self, id_: int, leader: UUID) -> bool:
        row = self.rows.get(id_)
        if row is None or (self.guarded and row.leader_id != leader):
            return False
        self._checkers.touched(id_, row.leader_id, leader)
        return True

    # ---- holds

    def run(
        self, transaction: Transaction, lane: int, hold_actions: HoldActions, leader: UUID | None, *, marked: bool
    ) -> frozenset[int]:
        """The records that are deleted: those that the leader has marked, or those that it has not."""
        if transaction.is_over:
            return frozenset()
        self._wait_for(transaction)
        gone: dict[int, str] = {}
        for dead_record in hold_actions.dead_records:
            if self._may_delete(dead_record.hold.head, leader, marked=marked) and not self._is_of_another(
                dead_record.hold.head
            ):
                gone[dead_record.hold.head] = dead_record.reason
        for id_ in hold_actions.discarded:
            if self._may_delete(id_, leader, marked=marked) and self._is_discarded(id_):
                gone[id_] = ""
        transaction.add(lambda: self._carry_out(gone, hold_actions.confirmed, lane))
        return frozenset(gone)

    def _carry_out(self, gone: dict[int, str], confirmed: Sequence[int], lane: int) -> None:
        for id_, reason in gone.items():
            if reason:
                self.dead[id_] = reason
            self._checkers.dead_lettered(self.rows.pop(id_))
        self.hold_table.lift(list(gone))
        for id_ in confirmed:
            self.hold_table.confirm(id_, lane)

    def _may_delete(self, id_: int, leader: UUID | None, *, marked: bool) -> bool:
        row = self.rows.get(id_)
        return row is not None and (row.leader_id == leader) is marked

    def _is_of_another(self, id_: int) -> bool:
        return self.hold_table.is_of_another(id_)

    def _is_discarded(self, id_: int) -> bool:
        return self.hold_table.is_discarded(id_)

    # ---- operators

    def delete(self, id_: int) -> None:
        """By hand; the application knows, so it is no loss."""
        if self.locked_by is None:
            del self.rows[id_]
            self._checkers.appended.setdefault(id_, 0)

    def _wait_for(self, transaction: Transaction | None) -> None:
        """What another transaction has done must be decided first."""
        if self.locked_by not in (None, transaction):
            raise Locked


class _Server:
    """The table as its holds see it."""

    def __init__(self, table: Table) -> None:
        self.world, self._table, self.now = table.world, table, self

    @property
    def rows(self) -> dict[int, Stored]:
        return self._table.rows

    @property
    def holds(self) -> dict[int, Hold]:
        return self._table.holds_by_id

    @property
    def hold_id(self) -> int:
        return self._table.hold_id

    @hold_id.setter
    def hold_id(self, value: int) -> None:
        self._table.hold_id = value

    def flush(self) -> None:
        pass
