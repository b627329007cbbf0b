"""Every interleaving of lane owners with those that change the lane count: no record is committed twice.

A small world: a table, the state row, per lane a producer epoch and the last batch with its purge; owners that stall
before each step, and two processes that both believe to own lane 0. Rules can be left out by name: then the search must
find the harm, else it proves nothing.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

import pytest

from outbox.core.exactly_once import decisions as v
from outbox.core.exactly_once.ledger import Entry

HERE, THERE = UUID(int=1), UUID(int=2)
NOON = datetime(2026, 1, 1, tzinfo=UTC)


class Owner(NamedTuple):
    lane: int
    phase: str = "init"
    epoch: int = 0
    total: int = 0
    batch: int = 0


class Changer(NamedTuple):
    phase: str = "look"
    before: int = 0
    to: int = 0
    number: int = 0
    lane: int = 0


class World(NamedTuple):
    table: int
    owners: tuple[Owner, ...]
    changers: tuple[Changer, ...]
    total: int
    requests: tuple[int, ...]
    closed_for: int = 0
    number: int = 0
    epochs: tuple[int, ...] = (0, 0, 0)
    unpurged: tuple[int, ...] = (0, 0, 0)
    sent: int = 0


class Harm(Exception):
    """A promise is broken."""


def put(values: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    return (*values[:place], value, *values[place + 1 :])


class Model:
    def __init__(self, without: str = "", epochs: int = 4) -> None:
        self.without, self.epochs = without, epochs

    def steps(self, world: World) -> Iterator[World]:
        for index, owner in enumerate(world.owners):
            for changed, after in getattr(self, f"owner_{owner.phase}")(world, owner):
                yield after._replace(owners=(*world.owners[:index], changed, *world.owners[index + 1 :]))
        for index, changer in enumerate(world.changers):
            for moved, after in getattr(self, f"changer_{changer.phase}")(world, changer):
                yield after._replace(changers=(*world.changers[:index], moved, *world.changers[index + 1 :]))

    # ---- an owner of a lane

    def init(self, world: World, lane: int) -> World:
        return world._replace(epochs=put(world.epochs, lane, world.epochs[lane] + 1))

    def owner_init(self, world: World, owner: Owner) -> Iterator[tuple[Owner, World]]:
        if "init_first" in self.without:
            yield from self.owner_read(world, owner)
        elif world.epochs[owner.lane] < self.epochs:
            after = self.init(world, owner.lane)
            yield owner._replace(phase="read", epoch=after.epochs[owner.lane]), after

    def owner_read(self, world: World, owner: Owner) -> Iterator[tuple[Owner, World]]:
        state = v.StateRow(world.total, world.closed_for or None)
        found = v.takeover(v.Facts(owner.lane, HERE, state, 0, None, 0))
        if isinstance(found, v.Closed | v.Idle):
            if owner.phase != "init":
                yield Owner(owner.lane), world
        elif "init_first" in self.without:
            yield owner._replace(phase="late_init", total=world.total), world
        else:
            yield owner._replace(phase="settle", total=world.total), world

    def owner_late_init(self, world: World, owner: Owner) -> Iterator[tuple[Owner, World]]:
        if world.epochs[owner.lane] < self.epochs:
            after = self.init(world, owner.lane)
            yield owner._replace(phase="settle", epoch=after.epochs[owner.lane]), after

    def settled(self, world: World, lane: int) -> World:
        table = world.table & ~world.unpurged[lane]
        return world._replace(table=table, unpurged=put(world.unpurged, lane, 0))

    def owner_settle(self, world: World, owner: Owner) -> Iterator[tuple[Owner, World]]:
        yield owner._replace(phase="ready"), self.settled(world, owner.lane)

    def owner_ready(self, world: World, owner: Owner) -> Iterator[tuple[Owner, World]]:
        for row in range(world.table.bit_length()):
            if world.table >> row & 1 and row % owner.total == owner.lane:
                yield owner._replace(phase="commit", batch=1 << row), world
                return

    def owner_commit(self, world: World, owner: Owner) -> Iterator[tuple[Owner, World]]:
        if world.epochs[owner.lane] != owner.epoch:
            yield Owner(owner.lane), world
            return
        if world.sent & owner.batch:
            raise Harm(f"a record is committed twice: {world}")
        after = world._replace(sent=world.sent | owner.batch, unpurged=put(world.unpurged, owner.lane, owner.batch))
        yield owner._replace(phase="purge"), after
        yield Owner(owner.lane), after  # a crash, or a lost reply

    def owner_purge(self, world: World, owner: Owner) -> Iterator[tuple[Owner, World]]:
        after = self.settled(world, owner.lane) if world.unpurged[owner.lane] == owner.batch else world
        yield owner._replace(phase="ready", batch=0), after

    # ---- an owner of lane 0 that changes the count

    def changer_look(self, world: World, changer: Changer) -> Iterator[tuple[Changer, World]]:
        if world.closed_for:
            yield Changer("fence", world.total, world.closed_for, world.number), world
        elif world.requests:
            request, *rest = world.requests
            closed = world._replace(closed_for=request, number=world.number + 1, requests=tuple(rest))
            yield Changer("fence", world.total, request, closed.number), closed

    def changer_fence(self, world: World, changer: Changer) -> Iterator[tuple[Changer, World]]:
        if changer.lane == changer.before or "fence" in self.without:
            yield changer._replace(phase="open"), world
        elif world.epochs[changer.lane] < 2 * self.epochs:
            yield changer._replace(phase="settle"), self.init(world, changer.lane)
        yield Changer(), world  # it stops being the owner of lane 0

    def changer_settle(self, world: World, changer: Changer) -> Iterator[tuple[Changer, World]]:
        after = world if "settle" in self.without else self.settled(world, changer.lane)
        yield changer._replace(phase="fence", lane=changer.lane + 1), after

    def changer_open(self, world: World, changer: Changer) -> Iterator[tuple[Changer, World]]:
        mine = world.closed_for and (world.number == changer.number or "number" in self.without)
        yield Changer(), world._replace(total=changer.to, closed_for=0) if mine else world


def explore(model: Model, start: World) -> set[World]:
    seen, stack = {start}, [start]
    while stack:
        for after in model.steps(stack.pop()):
            if after not in seen:
                seen.add(after)
                stack.append(after)
        assert len(seen) < 3_000_000
    return seen


def world(total: int, *requests: int, rows: int = 2, lanes: int = 2, changers: int = 1) -> World:
    return World((1 << rows) - 1, tuple(map(Owner, range(lanes))), (Changer(),) * changers, total, requests)


@pytest.mark.parametrize("begin", [world(2, 1), world(1, 2), world(2, 1, changers=2)])
def test_no_record_is_committed_twice_whatever_the_interleaving(begin: World) -> None:
    worlds = explore(Model(epochs=2), begin)
    assert any(w.sent == begin.table and not w.table and w.total == begin.requests[-1] for w in worlds)


@pytest.mark.parametrize("without", ["fence", "settle", "init_first"])
def test_a_rule_left_out_does_harm(without: str) -> None:
    with pytest.raises(Harm, match="committed twice"):
        explore(Model(without, epochs=2), world(2, 1))


# Two changes later the first one's sleeper wakes up, and the counts are what they were.
SLEEPER = world(2, 1)._replace(number=2, changers=(Changer(), Changer("open", before=2, to=1, number=1)))


def test_a_sleeper_ends_no_later_change() -> None:
    explore(Model(epochs=2), SLEEPER)


def test_without_its_number_an_old_change_would_end_a_new_one() -> None:
    with pytest.raises(Harm, match="committed twice"):
        explore(Model("number", epochs=2), SLEEPER)


# ---- lanes above the count


def entry(batch: int, *, lane: int = 4, database: UUID = HERE) -> Entry:
    return Entry(lane, batch, HERE, database, (1,), 0, NOON)


@pytest.mark.parametrize(
    ("purged", "last", "why"),
    [
        (0, None, None),
        (7, None, None),
        (7, entry(7), None),
        (7, entry(6), None),
        (7, entry(8), v.Why.DATABASE_WENT_BACK),
        (0, entry(1), v.Why.DATABASE_WENT_BACK),
        (7, entry(7, database=THERE), v.Why.FOREIGN_DATABASE),
        (7, entry(7, lane=3), v.Why.OTHER_LANE),
    ],
)
def test_an_idle_lane_must_have_been_settled(purged: int, last: Entry | None, why: v.Why | None) -> None:
    found = v.idle_lane(4, 2, HERE, purged, last)
    assert (found and found.why) == why
    assert found is None or "outbox_resolve --lane 4" in found.text
