"""Scenarios: from one seed, who writes what and which faults strike when. No promise is checked here."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from outbox.core.neli import Neli
from outbox.core.scoreboard import Scoreboard
from outbox.core.scoreboard_values import Limits
from tests.simulation.checkers import Checkers, Violation
from tests.simulation.process import Process
from tests.simulation.world import Faults, Row, World

FAULTS_S = 14.0
DRAIN_S = 90.0
TOPIC = "orders"


@dataclass(frozen=True)
class Cores:
    """The classes under test, and three mistakes an edge could make; mutations replace them."""

    neli: type[Neli] = Neli
    scoreboard: type[Scoreboard] = Scoreboard
    guarded: bool = True
    claims_fence: bool = True
    deletions_are_checked: bool = True


@dataclass(frozen=True)
class Outcome:
    trace: int
    appends: int
    duplicates: int
    regressions: int
    seconds: float


class Scenario:
    def __init__(self, seed: int, cores: Cores | None = None, *, operated: bool = False) -> None:
        self.cores = cores or Cores()
        self.window = 4 + seed % 9
        self.checkers = Checkers(window=self.window)
        self.faultless = seed % 8 == 0
        self.world = World(
            seed,
            lanes=1 + seed % 2,
            cooperative=seed % 3 != 0,
            checkers=self.checkers,
            guarded=self.cores.guarded,
        )
        self.world.table.claims_fence = self.cores.claims_fence
        self.world.operated = operated
        self.random = self.world.random
        self.operators = Random(f"operators {seed}")  # their own, so that seeds without them stay what they were
        self.limits = Limits(
            in_flight_max=self.window,
            mark_max=self.random.choice((3, 8, 20)),
            purge_max=self.random.choice((2, 50)),
            shards=self.random.choice((1, 3)),
            shard_buffer_max=6,
            key_buffer_max=self.random.choice((1, 3, 6)),
            deferred_max=self.random.choice((4, 40)),
            delivery_timeout_s=4.0,
            queue_timeout_s=3.0,
            refusal_backoff_max_s=3.0,
            sweep_interval_s=3.0,
        )
        self.keys = [f"k{i}" for i in range(self.random.choice((2, 6, 12)))]
        self.sequences = dict.fromkeys(self.keys, 0)
        self.locked: dict[str, None] = {}
        self.born = 0
        self.writing = True

    def run(self) -> Outcome:
        world = self.world
        for _ in range(self.random.choice((1, 2, 3))):
            self.spawn()
        self.write()
        self.sample()
        self.expire()
        if self.faultless:
            self.roll()
        else:
            self.strike()
        if self.world.operated:
            self.operate()
        world.run_until(world.now + FAULTS_S)
        self.settle()
        begun = world.now
        world.run_until(world.now + DRAIN_S, self.drained)
        self.checkers.finished(list(world.table.rows), faultless=self.faultless)
        checkers = self.checkers
        regressions = sum(checkers.regressions.values())
        return Outcome(world.trace, checkers.appends, checkers.duplicates, regressions, world.now - begun)

    def drained(self) -> bool:
        return not self.world.table.rows and not self.locked

    def living(self) -> list[Process]:
        return [p for p in self.world.processes if p.alive and not p.leaving]

    def spawn(self) -> None:
        self.born += 1
        Process(self.world, f"p{self.born}", self.cores, self.limits)

    # ---- writers

    def write(self) -> None:
        """One transaction: the row lock of its key is held from the first id to the end, as an application would."""
        if not self.writing:
            return
        hot = self.random.random() < 0.3
        key = self.keys[0] if hot else self.random.choice([*self.keys, ""])
        if key not in self.locked:
            self.begin(key)
        self.world.after(self.random.expovariate(14.0), self.write)

    def begin(self, key: str) -> None:
        first = self.sequences.get(key, 0)
        rows = [Row(self.world.table.draw_id(), TOPIC, key, first + i) for i in range(self.random.choice((1, 1, 2, 5)))]
        rolled_back = self.random.random() < 0.1
        if key:
            self.locked[key] = None

        def end() -> None:
            self.locked.pop(key, None)
            if not rolled_back:
                if key:
                    self.sequences[key] = first + len(rows)
                self.world.table.insert(rows)

        self.world.after(self.random.choice((0.002, 0.05, 0.5)), end)

    # ---- faults

    def roll(self) -> None:
        """A rolling restart without faults."""
        living = self.living()
        if len(living) > 1 or self.random.random() < 0.3:
            self.random.choice(living).stop()
        self.spawn()
        if self.writing:
            self.world.after(self.random.uniform(2.0, 4.0), self.roll)

    def strike(self) -> None:
        if not self.writing:
            return
        self.weather()
        faults = ("crash", "pause", "pause", "cut", "cut_table", "stop", "join", "ignorant", "stray", "classic")
        getattr(self, self.random.choice(faults))()
        if not self.living():
            self.spawn()
        self.world.after(self.random.uniform(0.3, 2.5), self.strike)

    def weather(self) -> None:
        def some(probability: float) -> float:
            return probability if self.random.random() < 0.4 else 0.0

        keys = self.keys
        self.world.faults = Faults(
            mark_error=some(0.1),
            mark_lost=some(0.1),
            mark_cut=some(0.03),
            statement_error=some(0.1),
            slow=some(0.1),
            ack_lost=some(0.1),
            ack_late=some(0.2),
            report_lost=some(0.02),
            refuse_keys={self.random.choice(keys): None} if self.random.random() < 0.3 else {},
            stall_keys={self.random.choice(keys): None} if self.random.random() < 0.3 else {},
        )

    def operate(self) -> None:
        """Every harvester hears of what operators want, as it would by looking at the table."""
        chance = self.operators
        if not self.faultless and self.writing and chance.random() < 0.2:  # more to decide than the weather gives
            self.world.faults.refuse_keys = {chance.choice(self.keys): None}
        for process in self.living():
            process.post("outcome", lambda now, process=process: process.operate(chance, now))
        if self.writing:
            self.world.after(chance.uniform(0.1, 0.6), self.operate)

    def anyone(self) -> Process | None:
        living = self.living()
        return self.random.choice(living) if living else None

    def crash(self) -> None:
        if process := self.anyone():
            process.crash()
            self.world.after(self.random.uniform(0.1, 3.0), self.spawn)

    def pause(self) -> None:
        process = self.anyone()
        if process and not process.paused:
            process.pause()
            self.world.after(self.random.choice((0.5, 2.5, 5.0, 8.0)), process.resume)

    def cut(self) -> None:
        if process := self.anyone():
            process.kafka_ok = False
            self.world.after(self.random.choice((0.5, 3.0, 8.0)), process.reconnect)

    def cut_table(self) -> None:
        if process := self.anyone():
            process.table_ok = False
            self.world.after(self.random.choice((0.5, 3.0)), process.reconnect)

    def stop(self) -> None:
        if process := self.anyone():
            process.stop()
            self.spawn()

    def join(self) -> None:
        if len(self.living()) < 5:
            self.spawn()

    def ignorant(self) -> None:
        """The coordinator has evicted a member that goes on producing and consuming for a while."""
        if process := self.anyone():
            process.ignorant_until = self.world.now + 4.0
            self.world.group.leave(process.name)

    def stray(self) -> None:
        """An operator deletes a row by hand; the application knows, so it is no loss."""
        rows = self.world.table.rows
        loose = [i for i, row in rows.items() if not row.kafka_key]
        if loose:
            gone = self.random.choice(loose)
            del rows[gone]
            self.checkers.appended.setdefault(gone, 0)

    def classic(self) -> None:
        """A classic harvester's beat. Its wall clock may be years off: clocks jump, the cores never look at one."""
        self.world.broker.append_beat(0, f"{self.random.getrandbits(60)}%reaper".encode())

    def settle(self) -> None:
        """The faults stop: everybody who lives is connected and runs."""
        self.writing = False
        self.world.faults = Faults()
        for process in self.world.processes:
            if process.alive and process.paused:
                process.resume()
            process.reconnect()
        if not self.living():
            self.spawn()

    # ---- watching

    def sample(self) -> None:
        for lane in range(self.world.lanes):
            leaders = [
                p.name
                for p in self.world.processes
                if p.alive and not p.paused and p.kafka_ok and p.neli.may_start(lane, p.clock)
            ]
            self.checkers.leaders(lane, leaders)
        self.world.after(0.25, self.sample)

    def expire(self) -> None:
        self.world.group.expire()
        self.world.after(0.5, self.expire)


def run(seed: int, cores: Any = None, *, operated: bool = False) -> Outcome:
    """Run one seed; a broken promise names the command that replays it."""
    scenario = Scenario(seed, cores, operated=operated)
    try:
        return scenario.run()
    except (Violation, AssertionError, KeyError) as error:
        raise Violation(
            f"{type(error).__name__}: {error}\n  at {scenario.world.now - 100:.3f} s of seed {seed}; "
            f"replay: pytest tests/simulation --seed {seed}"
        ) from error
