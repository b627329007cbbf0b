"""One seeded run of processes that append, read and keep, while stores, connections and processes fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch
from uuid import UUID

from greenlet import getcurrent

from outbox import failpoints
from outbox.core.journal import reading
from outbox.core.journal.values import JournalState
from outbox.journal import keeper, staging, upload
from tests.simulation.checkers import Violation
from tests.simulation.journal.checkers import Checker
from tests.simulation.journal.database import PRESENT, Database, Rules
from tests.simulation.journal.process import Appender, Follower, KeeperProcess, Process
from tests.simulation.journal.store import Store
from tests.simulation.seeded import run_seed
from tests.simulation.world import World

BLOCK = 8
FRAGMENT = 32
APPEND_S = 12.0
DRAIN_S = 60.0
THEMES = 4
PLAIN, STORES, PROCESSES, EVERYTHING = range(THEMES)
"""By the remainder of the seed."""


@dataclass
class Faults:
    """Probabilities, per statement, call or append."""

    cut: float = 0.0
    cut_commit: float = 0.0
    late: float = 0.0
    fail: float = 0.0
    hang: float = 0.0
    lie: float = 0.0
    interrupts: float = 0.05
    rolls_back: float = 0.1
    dawdle: float = 0.1
    crash: float = 0.0
    """At failpoints."""


@dataclass(frozen=True)
class Outcome:
    trace: int
    head: int
    staged: int
    given_up: int
    removed: int


class JournalWorld(World):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, lanes=1, cooperative=False)
        self.theme = seed % THEMES
        self.tasks: list[Any] = []
        self.crash: Callable[[Any], None] = lambda process: None
        self.faults: Faults = Faults()
        source = self.random
        self.switching = source.choice((0.0, 0.0, 0.02, 0.1))
        self.replicas = source.choice((1, 2, 2))
        zones = {"a": "east", "b": "west", "c": source.choice(("west", "north"))}
        self.zones = zones if self.replicas > 1 or source.random() < 0.5 else {"a": "east"}
        self.stores = {name: Store(self, name, zone) for name, zone in self.zones.items()}
        self.journal, self.block = "orders", BLOCK
        state = JournalState(self.journal, replicas=self.replicas, stores=tuple(self.zones), fragment_bytes=FRAGMENT)
        self.database = Database(self, state)
        self.checker = Checker(self)
        self.stage_age_s = source.choice((2.0, 20.0))
        self.scrub_age_s = source.choice((1.0, 10.0))
        self.latest: dict[Any, str] = {}
        self.is_appending = True
        self.staged = self.given_up = 0
        self.read_to: dict[str, int] = {}
        self._uids = 0
        self._error: BaseException | None = None

    def new_append(self, process: Process) -> str:
        append = str(UUID(int=self.random.getrandbits(128), version=4))
        self.latest[getcurrent()] = append
        return append

    def new_uid(self) -> int:
        self._uids += 1
        return self._uids

    def fail(self, error: BaseException) -> None:
        self._error = self._error or error

    def require_no_error(self) -> None:
        if self._error is not None:
            raise self._error

    @property
    def has_failed(self) -> bool:
        return self._error is not None


class Scenario:
    def __init__(self, seed: int) -> None:
        self.world = world = JournalWorld(seed)
        source = world.random
        self.bad = world.stores[source.choice(sorted(world.stores))]
        if world.theme in (STORES, EVERYTHING):
            world.faults.fail, world.faults.hang = source.choice((0.0, 0.02)), source.choice((0.0, 0.004, 0.01))
            world.faults.lie = 0.1
            self.bad.is_lying = source.random() < 0.7
        if world.theme in (PROCESSES, EVERYTHING):
            world.faults.cut, world.faults.cut_commit = 0.02, 0.15
            world.faults.late, world.faults.crash = 0.2, source.choice((0.0, 0.02))
        world.crash = self._crash
        if world.theme == EVERYTHING:
            world.database.retention_s = source.choice((None, 5.0, 15.0))
        self.appenders = [Appender(world, f"appender-{number}") for number in range(source.choice((1, 2)))]
        self.keeper = KeeperProcess(world, "keeper")
        self.follower = Follower(world, "follower")

    def run(self) -> Outcome:
        world = self.world
        if world.theme in (STORES, EVERYTHING):
            self._later(self._befall_store)
        if world.theme in (PROCESSES, EVERYTHING):
            self._later(self._befall_process)
        self._until(world.now + APPEND_S)
        self._end_faults()
        self._until(world.now + DRAIN_S)
        world.database.retention_s = None
        self._until(world.now + DRAIN_S / 2)
        if world.read_to.get("follower", 0) < len(world.checker.truth) > world.checker.jumps_until:
            raise Violation(f"the reader is at {world.read_to}, and the head is {len(world.checker.truth)}")
        world.checker.final()
        removed = len(world.checker.removed)
        return Outcome(world.trace, len(world.checker.truth), world.staged, world.given_up, removed)

    def _until(self, end: float) -> None:
        self.world.run_until(end, lambda: self.world.has_failed)
        self.world.require_no_error()
        self.world.now = end

    def _later(self, act: Callable[[], None]) -> None:
        def again() -> None:
            if self.world.is_appending:
                act()
                self._later(act)

        self.world.after(self.world.random.uniform(0.2, 6.0), again)

    # ---- faults

    def _befall_store(self) -> None:
        world = self.world
        store = world.stores[world.random.choice(sorted(world.stores))]
        kind = world.random.randrange(3)
        if kind == 0:
            store.away_until = world.now + world.random.choice((0.5, 5.0))
        elif kind == 1:
            store.full_until = world.now + world.random.choice((0.5, 5.0))
        elif world.replicas > 1:
            before = dict(self.bad.objects)
            self.bad.spoil(world.random)
            changed = [path for path in before if self.bad.objects.get(path) != before[path]]
            world.checker.spoiled |= {(self.bad.name, path) for path in changed}

    def _befall_process(self) -> None:
        world = self.world
        victim = world.random.choice([*self.appenders, self.keeper, self.follower])
        if world.chance(0.4):
            victim.runtime.pause()
            world.after(world.random.choice((0.5, 4.0, 20.0)), victim.runtime.resume)
            return
        self._crash(victim)

    def _crash(self, victim: Any) -> None:
        world = self.world
        victim.crash()
        if victim in self.appenders:
            self.appenders[self.appenders.index(victim)] = Appender(world, victim.name)
        elif victim is self.keeper:  # one at a time: a lock of the database ends with its session
            world.after(1.5, self._new_keeper)
        else:
            self.follower = Follower(world, "follower")

    def _new_keeper(self) -> None:
        if not self.keeper.runtime.is_alive:
            self.keeper = KeeperProcess(self.world, "keeper")

    def _end_faults(self) -> None:
        world = self.world
        world.is_appending = False
        world.faults = Faults(interrupts=0.0, rolls_back=0.0, dawdle=0.0)
        for store in world.stores.values():
            store.is_lying = False
            store.away_until = store.full_until = 0.0
        for process in world.processes:
            if process.runtime.is_paused:
                process.runtime.resume()


@contextmanager
def sized() -> Iterator[None]:
    """Blocks of a few bytes."""
    with ExitStack() as stack:
        for module in (reading, keeper, staging, upload):
            stack.enter_context(patch.object(module, "BLOCK_BYTES", BLOCK))
        stack.enter_context(patch.object(failpoints, "on_passage", lambda name: getcurrent().runtime.passed(name)))
        yield


def run(
    seed: int, rules: Rules = PRESENT, changed: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Outcome:
    """`rules` are those of the server. `changed`: what is planted in the product."""
    outcome: Outcome = run_seed("journal", seed, _prepared(seed, rules, changed))
    return outcome


@contextmanager
def _prepared(seed: int, rules: Rules, changed: Callable[[], AbstractContextManager[None]]) -> Iterator[Scenario]:
    with sized(), changed():
        scenario = Scenario(seed)
        scenario.world.database.rules = rules
        yield scenario
