"""The simulated surroundings: time, table, broker, group coordinator. They obey; faults are chosen by the scenario."""

from __future__ import annotations

import heapq
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.simulation.checkers import Checkers

SESSION_TIMEOUT_S = 6.0
STATEMENT_TIMEOUT_S = 1.0
DELIVERY_TIMEOUT_S = 1.5


@dataclass(slots=True)
class Row:
    id: int
    kafka_topic: str
    kafka_key: str
    sequence: int
    leader_id: UUID | None = None


@dataclass
class Faults:
    """Probabilities per operation; all zero once the faults stop."""

    mark_error: float = 0.0  # not executed, reported as failed
    mark_lost: float = 0.0  # executed, reported as failed
    mark_cut: float = 0.0  # executed, the result is cut short
    statement_error: float = 0.0
    slow: float = 0.0  # up to three times the statement time-out
    ack_lost: float = 0.0
    ack_late: float = 0.0
    report_lost: float = 0.0
    refuse_keys: dict[str, None] = field(default_factory=dict)
    stall_keys: dict[str, None] = field(default_factory=dict)


class World:
    """Virtual time and everything that processes share."""

    def __init__(self, seed: int, *, lanes: int, cooperative: bool, checkers: Checkers, guarded: bool = True) -> None:
        self.random = random.Random(seed)
        self.now = 100.0
        self.lanes = lanes
        self.faults = Faults()
        self.checkers = checkers
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.table = Table(self, guarded=guarded)
        self.broker = Broker(self)
        self.group = Group(self, cooperative=cooperative)
        self.processes: list[Any] = []
        self.trace = 0
        self.operated = False  # whether operators act, and refused records stand in a table for the next leader
        self.parked: dict[int, Any] = {}

    def new_id(self) -> UUID:
        return UUID(int=self.random.getrandbits(128), version=4)

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability

    def latency(self) -> float:
        return self.random.uniform(0.001, 0.012)

    def after(self, delay: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self.events, (self.now + delay, self._count, action))

    def note(self, *what: object) -> None:
        """Feeds the trace hash: two runs of one seed must agree in it."""
        self.trace = zlib.crc32(f"{self.now:.9f} {what}".encode(), self.trace)

    def run_until(self, end: float, done: Callable[[], bool] | None = None) -> None:
        for _ in range(3_000_000):
            if not self.events or self.events[0][0] > end or (done is not None and done()):
                break
            self.now, _, action = heapq.heappop(self.events)
            action()
        else:
            raise AssertionError("the simulation did not come to its end: somebody spins")

    def lane_of(self, key: str) -> int:
        return zlib.crc32(key.encode()) % self.lanes


class Session:
    """A database session that holds the claim of a lane."""

    def __init__(self, lane: int, epoch: int) -> None:
        self.lane, self.epoch, self.alive = lane, epoch, True


class Table:
    """Rows with marks. Statements are atomic; what may go wrong around them is the connection's affair."""

    def __init__(self, world: World, *, guarded: bool) -> None:
        self.world = world
        self.guarded = guarded
        self.rows: dict[int, Row] = {}
        self.next_id = 1
        self.holders: dict[int, Session] = {}
        self.claims_fence = True

    def draw_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def insert(self, rows: list[Row]) -> None:
        for row in rows:
            self.rows[row.id] = row
        self.world.checkers.committed(rows)

    def claim(self, lane: int, epoch: int) -> Session | None:
        holder = self.holders.get(lane)
        if holder is not None and self.claims_fence:
            if holder.alive and holder.epoch > epoch:
                return None
            holder.alive = False
        self.holders[lane] = Session(lane, epoch)
        return self.holders[lane]

    def mark(
        self, session: Session | None, leader_id: UUID, limit: int, exclude: tuple[tuple[str, str], ...]
    ) -> list[Row] | None:
        if session is None or not session.alive:
            return None
        lane_of = self.world.lane_of
        found = [
            row
            for _, row in sorted(self.rows.items())
            if row.leader_id != leader_id
            and lane_of(row.kafka_key) == session.lane
            and (row.kafka_topic, row.kafka_key) not in exclude
        ][:limit]
        for row in found:
            row.leader_id = leader_id
        self.world.checkers.marked(session.lane, session.epoch, len(found))
        self.world.random.shuffle(found)  # RETURNING promises no order
        return found

    def fetch(self, leader_id: UUID, ids: tuple[int, ...]) -> list[Row]:
        return [self.rows[i] for i in reversed(ids) if i in self.rows and self.rows[i].leader_id == leader_id]

    def purge(self, leader_id: UUID, ids: tuple[int, ...]) -> list[int]:
        return [i for i in ids if i in self.rows and self._touch(i, leader_id) and self.rows.pop(i)]

    def reset(self, leader_id: UUID, ids: tuple[int, ...]) -> None:
        for i in ids:
            if i in self.rows and self._touch(i, leader_id):
                self.rows[i].leader_id = None

    def bury(self, leader_id: UUID, id_: int) -> bool:
        row = self.rows.get(id_)
        if row is None or row.leader_id != leader_id:
            return False
        del self.rows[id_]
        self.world.checkers.buried(row)
        return True

    def sweep(self, leader_id: UUID, limit: int) -> list[int]:
        return [i for i, row in self.rows.items() if row.leader_id == leader_id][:limit]

    def _touch(self, id_: int, leader_id: UUID) -> bool:
        if self.guarded and self.rows[id_].leader_id != leader_id:
            return False
        self.world.checkers.touched(id_, self.rows[id_].leader_id, leader_id)
        return True


class Broker:
    """The leader topic's partitions. The data topics live in the checkers: nobody else reads them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.beats: dict[int, list[bytes]] = {}

    def append_beat(self, partition: int, payload: bytes) -> None:
        self.beats.setdefault(partition, []).append(payload)
        for process in self.world.processes:
            self.world.after(self.world.latency(), process.notify)


class Group:
    """A coordinator with session time-outs; eager or cooperative."""

    def __init__(self, world: World, *, cooperative: bool) -> None:
        self.world = world
        self.cooperative = cooperative
        self.members: dict[str, Any] = {}
        self.seen: dict[str, float] = {}
        self.owner: dict[int, str] = {}
        self.partitions = range(world.lanes + 1)  # one more than lanes: it must stay idle
        self._waiting: dict[int, str] = {}
        self._balancing = False
        self._dirty = False

    def join(self, process: Any) -> None:
        self.leave(process.name)  # who comes back owns nothing of what its former self had
        self.members[process.name] = process
        self.seen[process.name] = self.world.now
        self.balance()

    def leave(self, name: str) -> None:
        """Leaving by itself, or eviction: its partitions are free at once."""
        if self.members.pop(name, None) is None:
            return
        for partition in [p for p, owner in self.owner.items() if owner == name]:
            del self.owner[partition]
            self._waiting.pop(partition, None)
        self.balance()
        self._go_on()

    def others(self, name: str) -> list[str]:
        return [other for other in self.members if other != name]

    def is_owner(self, name: str, partition: int) -> bool:
        return name in self.members and self.owner.get(partition) == name

    def expire(self) -> None:
        for name in list(self.members):
            if self.world.now - self.seen[name] > SESSION_TIMEOUT_S:
                self.leave(name)

    def balance(self) -> None:
        if self._balancing:
            self._dirty = True
            return
        self._balancing, self._dirty = True, False
        self._target = self._assignment()
        for partition, owner in list(self.owner.items()):
            if not self.cooperative or self._target.get(partition) != owner:
                self._waiting[partition] = owner
                self.members[owner].post("revoke", partition)
        self.world.after(0.02, self._go_on)

    def released(self, name: str, partition: int) -> None:
        if self._waiting.get(partition) == name:
            del self._waiting[partition]
            self.owner.pop(partition, None)
            self._go_on()

    def _go_on(self) -> None:
        if not self._balancing or self._waiting:
            return
        self._balancing = False
        if self._dirty:
            self.balance()
            return
        for partition, name in self._target.items():
            if self.owner.get(partition) != name and name in self.members:
                self.owner[partition] = name
                self.members[name].post("assign", partition)

    def _assignment(self) -> dict[int, str]:
        names = list(self.members)
        if not names:
            return {}
        if not self.cooperative:
            self.world.random.shuffle(names)  # member ids are random and range sorts them
            return {p: names[p % len(names)] for p in self.partitions}
        target: dict[int, str] = {}
        share = -(-len(self.partitions) // len(names))
        for p in self.partitions:
            owner = self.owner.get(p)
            if owner in self.members and list(target.values()).count(owner) < share:
                target[p] = owner
        for p in self.partitions:
            if p not in target:
                target[p] = min(names, key=lambda n: list(target.values()).count(n))
        return target
