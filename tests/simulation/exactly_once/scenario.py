"""Scenarios of exactly-once delivery: from one seed, who writes what and which faults strike when."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from outbox.core import ledger, verdict
from outbox.core.frontier import Frontier
from outbox.core.neli import Neli
from outbox.core.resolution import is_sent_as_a_whole
from tests.simulation import world as surroundings
from tests.simulation.checkers import Violation
from tests.simulation.exactly_once.broker import Broker
from tests.simulation.exactly_once.checkers import Checkers, Written
from tests.simulation.exactly_once.database import Database
from tests.simulation.exactly_once.process import Process
from tests.simulation.exactly_once.rounds import Rounds

FAULTS_S = 7.0
DRAIN_S = 60.0
MEMBERS_MAX = 4


@dataclass(frozen=True)
class Cores:
    """The classes under test, and the rules that the edges keep; mutations replace them one by one."""

    neli: type[Neli] = Neli
    frontier: type[Frontier] = Frontier
    rounds: type[Rounds] = Rounds
    verdicts: Any = verdict
    guarded: bool = True
    entry_first: bool = False
    renews: bool = True
    waits_for_stable: bool = True
    flushes: bool = True
    resets: bool = True
    awaits_purge: bool = True
    reuses_producers: bool = False
    swallows_refusals: bool = False
    looks_again: bool = True
    """At a page dealt out before a record of it, or of its key, was held."""
    settles: bool = True
    compares_after_connect: bool = True
    heeds_changes: bool = True


@dataclass
class Faults:
    """Probabilities per operation; all zero once the faults stop."""

    cut: float = 0.0
    cut_end: float = 0.0
    hold: float = 0.0
    statement_error: float = 0.0
    statement_slow: float = 0.0
    answer_lost: float = 0.0
    point: float = 0.0
    refuse: dict[str, None] = field(default_factory=dict)
    refuse_here: dict[str, None] = field(default_factory=dict)


class World(surroundings.World):
    faults: Faults  # type: ignore[assignment]

    def __init__(self, seed: int, checkers: Checkers, cores: Cores) -> None:
        super().__init__(seed, lanes=1 + seed % 3, cooperative=seed % 4 != 0, checkers=None)  # type: ignore[arg-type]
        self.faults = Faults()
        self.kafka = Broker(self, checkers)
        count = self.random.randint(1, self.lanes)
        self.database = Database(self, checkers, count)
        self.database.guarded = cores.guarded
        self.wanted: int | None = None
        self.stopped: dict[int, verdict.Stop] = {}

    def lane_of(self, key: str) -> int:
        return zlib.crc32(key.encode())

    def struck(self, process: Process, name: str) -> None:
        """A fault at a chosen point of a process."""
        kind = self.random.choice(("pause", "pause", "crash", "cut"))
        if kind == "pause" and not process.paused:
            process.pause()
            self.after(self.random.choice((0.02, 0.3, 1.0, 3.0, 5.0)), process.resume)
        elif kind == "crash":
            process.crash()
        elif kind == "cut":
            for client in process.clients:
                client.cut()

    def close_lanes(self) -> None:
        state = self.database.now.state
        if state.resize_to is None and self.wanted is not None:
            self._close(state, self.wanted, 0)

    def close_all_lanes(self, before: verdict.State, newest: int) -> None:
        """For the count that the row has: the database forgot a change of that number."""
        if self.database.now.state == before:
            self._close(before, before.lane_count, newest)

    def _close(self, state: verdict.State, lanes: int, newest: int) -> None:
        number = max(state.resize_no + 1, newest + 1, int(self.now * 1_000_000))
        self.database.now.state = replace(state, resize_to=lanes, resize_no=number)

    def open_lanes(self, change: verdict.State, settled: dict[int, int]) -> None:
        now = self.database.now
        is_settled = all(now.purged.get(lane, 0) >= batch for lane, batch in settled.items())
        if now.state == change and change.resize_to is not None and is_settled:
            now.state = replace(change, lane_count=change.resize_to, resize_to=None)
            self.wanted = None


@dataclass(frozen=True)
class Outcome:
    trace: int
    delivered: int
    batches: int
    seconds: float


class Scenario:
    def __init__(self, seed: int, cores: Cores | None = None) -> None:
        self.cores = cores or Cores()
        self.checkers = Checkers()
        self.world = World(seed, self.checkers, self.cores)
        self.random = self.world.random
        self.is_lossy = seed % 5 == 1  # TRUNCATE and failover: a lane may have to stop
        if not self.is_lossy and seed % 4 == 2:  # after a loss times tell single rows apart, if they are the server's
            self.world.database.supplied = Random(seed)
        self.world.kafka.hasty = seed % 3 == 1
        self.world.kafka.markers_slow = self.random.choice((0.0, 0.3))
        self.flushed = self.random.choice((0.0, 0.5, 1.0))
        self.keys = [f"k{i}" for i in range(self.random.choice((1, 3, 8)))]
        self.sequences = dict.fromkeys(self.keys, 0)
        self.locked: dict[str, None] = {}
        self.born = self.uid = 0
        self.writing = True
        self.kept: Any = None

    def run(self) -> Outcome:
        world = self.world
        for _ in range(self.random.choice((1, 2, 3))):
            self.spawn()
        self.write()
        self.expire()
        self.operate()
        world.after(self.random.uniform(0.3, 1.5), self.strike)
        world.run_until(world.now + FAULTS_S)
        self.settle()
        begun = world.now
        world.run_until(world.now + DRAIN_S, self.drained)
        self.checkers.finished(list(world.database.now.rows))
        sent = (payload for lane in range(world.lanes) for _, payload in world.kafka.ledger(lane).records)
        batches = sum(payload != ledger.BEGINNING for payload in sent)
        return Outcome(world.trace, len(self.checkers.delivered), batches, world.now - begun)

    def drained(self) -> bool:
        data = self.world.kafka.data
        return not self.world.database.now.rows and not self.locked and data.stable == data.end

    def living(self) -> list[Process]:
        return [p for p in self.world.processes if p.alive and not p.leaving]

    def spawn(self) -> None:
        self.born += 1
        Process(self.world, f"p{self.born}", self.cores)

    # ---- applications

    def write(self) -> None:
        """One transaction: the row lock of its key is held from the first id to the end, as an application would."""
        if not self.writing:
            return
        key = self.random.choice([*self.keys, self.keys[0], ""])
        if key not in self.locked:
            self.begin(key)
        self.world.after(self.random.expovariate(10.0), self.write)

    def begin(self, key: str) -> None:
        database, rolled_back = self.world.database, self.random.random() < 0.1
        xid = database.begin()
        first = self.sequences.get(key, 0)
        records = []
        for i in range(self.random.choice((1, 1, 2, 4))):
            self.uid += 1
            records.append(Written(self.uid, key, first + i, database.draw_id()))
        if key:
            self.locked[key] = None

        def end() -> None:
            self.locked.pop(key, None)
            if not database.is_running(xid):
                return  # the server was restarted
            if rolled_back:
                database.end(xid)
                return
            if key:
                self.sequences[key] = first + len(records)
            database.end(xid, records, is_flushed=self.random.random() < self.flushed)

        self.world.after(self.random.choice((0.002, 0.02, 0.02, 0.3, 2.0)) * self.random.random(), end)

    # ---- faults

    def strike(self) -> None:
        if not self.writing:
            return
        self.weather()
        faults = ["crash", "pause", "cut", "cut_table", "stop", "join", "ignorant", "restart", "stranger", "resize"]
        if self.is_lossy:
            faults += ["truncate", "truncate", "fail_over", "fail_over", "forget_a_change", "forget_a_change"]
        getattr(self, self.random.choice(faults))()
        if not self.living():
            self.spawn()
        self.world.after(self.random.uniform(0.1, 1.2), self.strike)

    def weather(self) -> None:
        def some(probability: float) -> float:
            return probability if self.random.random() < 0.4 else 0.0

        refused = {self.random.choice(self.keys): None}
        self.world.faults = Faults(
            cut=some(0.08),
            cut_end=some(0.3),
            hold=some(0.04),
            statement_error=some(0.06),
            statement_slow=some(0.06),
            answer_lost=some(0.06),
            point=some(0.06),
            refuse=refused if self.random.random() < 0.1 else {},
            refuse_here=refused if self.random.random() < 0.1 else {},
        )

    def anyone(self) -> Process | None:
        living = self.living()
        return self.random.choice(living) if living else None

    def crash(self) -> None:
        if process := self.anyone():
            process.crash()
            self.world.after(self.random.uniform(0.05, 1.0), self.spawn)

    def pause(self) -> None:
        process = self.anyone()
        if process and not process.paused:
            process.pause()
            self.world.after(self.random.choice((0.3, 1.0, 2.5, 5.0)), process.resume)

    def cut(self) -> None:
        if process := self.anyone():
            process.cut()
            self.world.after(self.random.choice((0.05, 0.5, 3.0)), process.reconnect)

    def cut_table(self) -> None:
        if process := self.anyone():
            process.table_ok = False
            self.world.after(self.random.choice((0.1, 1.0)), process.reconnect)

    def stop(self) -> None:
        if process := self.anyone():
            process.stop()
            self.spawn()

    def join(self) -> None:
        if len(self.living()) < MEMBERS_MAX:
            self.spawn()

    def ignorant(self) -> None:
        """The coordinator has evicted a member that goes on producing and consuming for a while."""
        if process := self.anyone():
            process.ignorant_until = self.world.now + 2.0
            self.world.group.leave(process.name)

    def restart(self) -> None:
        self.world.database.crash()
        self.kept = None

    def stranger(self) -> None:
        """A transaction that never touches the table."""
        xid = self.world.database.begin(writes=False)
        self.world.after(self.random.uniform(0.5, 3.0), lambda: self.world.database.end(xid))

    def resize(self) -> None:
        state = self.world.database.now.state
        if self.world.wanted is None and state.resize_to is None:
            wanted = self.random.randint(1, self.world.lanes)
            self.world.wanted = wanted if wanted != state.lane_count else None

    def truncate(self) -> None:
        if self.world.database.truncate():
            self.kept = None
        else:
            self.world.after(0.02, self.truncate)

    def fail_over(self) -> None:
        """To a copy that lags by the time until now."""
        if self.kept is None:
            self.kept = self.world.database.copy()
            self.world.after(self.random.uniform(0.05, 0.6), self.fail_over)
        else:
            kept, self.kept = self.kept, None
            self.world.database.fail_over(kept)

    def forget_a_change(self) -> None:
        """To a copy from before a change of the lane count."""
        if self.kept is None:
            self.kept = self.world.database.copy()
            self.resize()
            self.world.after(self.random.uniform(0.2, 2.0), self.fail_over_to_it)

    def fail_over_to_it(self) -> None:
        if self.kept is not None:
            self.fail_over()

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

    # ---- the operator

    def operate(self) -> None:
        """What `outbox_resolve --purge-sent` does, for lanes that have stopped; nothing else may stop one."""
        for lane in list(self.world.stopped):
            found = self.world.stopped.pop(lane)
            if not self.is_lossy:
                raise Violation(f"stopped without a cause: {found.text}")
            self.resolve(lane)
        self.world.after(0.7, self.operate)

    def resolve(self, lane: int) -> None:
        log, now = self.world.kafka.ledger(lane), self.world.database.now
        if log.stable < log.end:
            return
        committed = (record for transaction, record in log.records if transaction.commits)
        entries = [ledger.decode(*record) for record in committed if record != ledger.BEGINNING]
        for entry in entries:
            if entry.batch > now.purged.get(lane, 0):
                found = self.world.database.look_up(entry.ids)
                whole = is_sent_as_a_whole(entry, found.count, found.digest, found.newest)
                for id_ in entry.ids if whole is not False else ():
                    if id_ in now.rows and (whole or now.rows[id_].create_time <= entry.up_to):
                        self.checkers.purged(now.rows.pop(id_).uid)
        now.purged[lane] = entries[-1].batch if entries else 0

    def expire(self) -> None:
        self.world.group.expire()
        self.world.after(0.5, self.expire)


def run(seed: int, cores: Any = None) -> Outcome:
    """Run one seed; a broken promise names the command that replays it."""
    scenario = Scenario(seed, cores)
    try:
        return scenario.run()
    except (Violation, AssertionError, KeyError) as error:
        raise Violation(
            f"{type(error).__name__}: {error}\n  at {scenario.world.now - 100:.3f} s of seed {seed}; "
            f"replay: pytest tests/simulation/exactly_once --seed {seed}"
        ) from error
