"""Scenarios of at-least-once delivery: one seed decides who writes which records, and which faults occur when.

The product elects and harvests. Threads, clock, the group, the table and the clients of Kafka are simulated below it.
The scenario checks no promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

from greenlet import getcurrent

from outbox import failpoints
from outbox.conf import Conf, parse
from outbox.core.at_least_once import held
from outbox.core.at_least_once import values as values
from outbox.election import member
from outbox.election import reader as election_reader
from outbox.harvest.at_least_once import lane as at_least_once
from outbox.harvest.at_least_once.lane import AtLeastOnce
from outbox.harvest.at_least_once.statements import StatementRunner
from tests.simulation import world as surroundings
from tests.simulation.at_least_once.checkers import HEARTBEAT_TIMEOUT_S, Checkers
from tests.simulation.at_least_once.kafka import DELIVERY_TIMEOUT_S
from tests.simulation.at_least_once.process import Process
from tests.simulation.at_least_once.table import TOPIC, Table
from tests.simulation.checkers import Violation
from tests.simulation.exactly_once.database import STATEMENT_TIMEOUT_S
from tests.simulation.exactly_once.holds import Hold
from tests.simulation.group import SESSION_TIMEOUT_S
from tests.simulation.leader_topic import Topic
from tests.simulation.planted import around
from tests.simulation.runtime import LONG_S, SWITCHED_S
from tests.simulation.seeded import run_seed
from tests.support.settings import changed

FAULTS_S = 8.0
DRAIN_S = 90.0
MEMBERS_MAX = 4
INTERRUPTED = 2, 20
"""The remainder of the seeds, divided by the second number, in which members pause while their records are refused."""


@dataclass
class Faults:
    """Probabilities per operation; all zero once the faults stop."""

    statement_error: float = 0.0  # not executed, reported as failed
    broken: str = ""  # connections of this name: there are none
    statement_slow: float = 0.0  # up to three times the statement time-out
    answer_lost: float = 0.0  # executed, reported as failed
    answer_late: float = 0.0
    late_s: tuple[float, float] = (0.05, 1.0)
    mark_cut: float = 0.0  # executed, the result is cut short
    ack_lost: float = 0.0
    ack_late: float = 0.0
    report_lost: float = 0.0
    point: float = 0.0
    refuse_keys: dict[str, None] = field(default_factory=dict)
    stall_keys: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True)
class Rules:
    """What the simulated table guards in the place of PostgreSQL."""

    guarded: bool = True
    takeovers_fence: bool = True


PLAIN = Rules()


@dataclass(frozen=True)
class Outcome:
    trace: int
    appends: int
    duplicates: int
    regressions: int
    seconds: float


class World(surroundings.World):
    faults: Faults
    watches = False  # whether crashes are blamed on records

    def __init__(self, seed: int, checkers: Checkers, rules: Rules) -> None:
        super().__init__(seed, lanes=1 + seed % 2, cooperative=seed % 3 != 0)
        self.seed, self.faults, self.checkers = seed, Faults(), checkers
        self.table = Table(self, checkers)
        self.table.guarded, self.table.takeovers_fence = rules.guarded, rules.takeovers_fence
        self.leader_topic = Topic(self)
        self.switching, self.switched_s = self.random.choice(((0.0, ()), (0.0, ()), (0.05, SWITCHED_S), (0.01, LONG_S)))
        self.tasks: list[Any] = []
        self.conf = self._settings()

    def _settings(self) -> Conf:
        """Few records in a mark, and time-outs that pass within a scenario."""
        choice = self.random.choice
        given = {"BOOTSTRAP_SERVERS": "simulated:1", "NAME": "outbox", "DELIVERY": "at-least-once"}
        return changed(
            parse(given),
            LANES=self.lanes,
            ASSIGNOR="cooperative-sticky" if self.group.cooperative else "range",
            HEARTBEAT_TIMEOUT=HEARTBEAT_TIMEOUT_S,
            SESSION_TIMEOUT=SESSION_TIMEOUT_S,
            FLUSH_TIMEOUT=3.0,
            STATEMENT_TIMEOUT=STATEMENT_TIMEOUT_S,
            IN_FLIGHT_MAX=4 + self.seed % 9,
            MARK_MAX=choice((3, 8, 20)),
            SEND_CONCURRENCY=choice((1, 3)),
            SEND_BUFFER=6,
            KEY_BUFFER=choice((1, 3, 6)),
            DEFERRED_MAX=choice((4, 40)),
            DELIVERY_TIMEOUT=DELIVERY_TIMEOUT_S,
            QUEUE_TIMEOUT=3.0,
            DRAIN_TIMEOUT=2.0,
            SWEEP_INTERVAL=3.0,
            IO_BACKOFF=0.5,
            MARK_BACKOFF=0.3,
            METRICS_INTERVAL=1000.0,
            REJECTION_POLICY=choice(("block", "block", "skip")),
            REJECTION_ATTEMPTS=choice((1, 3)),
        )

    def fail(self, error: BaseException) -> None:
        """Something that no thread may survive: raised where it ends the scenario."""

        def end() -> None:
            raise Violation(f"a harvester has ended: {error!r}") from error

        self.after(0.0, end)

    def struck(self, process: Process, name: str) -> None:
        """A fault at a chosen point of a process."""
        kind = self.random.choice(("pause", "pause", "crash", "cut"))
        if kind == "pause" and not process.paused:
            process.pause()
            self.after(self.random.choice((0.02, 0.5, 2.5, 5.0)), process.resume)
        elif kind == "crash":
            process.crash()
        elif kind == "cut":
            process.kafka_ok = False
            self.after(self.random.choice((0.5, 3.0)), process.reconnect)


class Scenario:
    def __init__(self, seed: int, rules: Rules = PLAIN) -> None:
        self.checkers = Checkers(window=4 + seed % 9)
        self.faultless = seed % 8 == 0
        self.is_operated = seed % 4 == 3
        self.is_interrupted = seed % INTERRUPTED[1] == INTERRUPTED[0]
        self.world = World(seed, self.checkers, rules)
        self.random = self.world.random
        self.operators = Random(f"operators {seed}")  # of their own: what else the seed means is not changed by them
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
            world.after(self.random.uniform(0.3, 1.5), self.strike)
        if self.is_operated:
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
        Process(self.world, f"p{self.born}")

    # ---- writers

    def write(self) -> None:
        """One transaction: the row lock of its key is held from the first id to the end, as an application would."""
        if not self.writing:
            return
        hot = self.random.random() < 0.3
        key = self.keys[0] if hot else self.random.choice([*self.keys, ""])
        if key not in self.locked:
            self.begin(key)
        self.world.after(self.random.expovariate(8.0), self.write)

    def begin(self, key: str) -> None:
        first = self.sequences.get(key, 0)
        rows = [self.world.table.draw(key, first + i) for i in range(self.random.choice((1, 1, 2, 5)))]
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
        faults = ("crash", "pause", "pause", "cut", "cut_table", "stop", "join", "ignorant", "stray", "goharvest")
        if self.is_interrupted:
            self.world.faults.refuse_keys = dict.fromkeys(self.keys)
            faults = ("pause", "pause", "pause", "join")
        getattr(self, self.random.choice(faults))()
        if not self.living():
            self.spawn()
        self.world.after(self.random.uniform(0.3, 2.0), self.strike)

    def weather(self) -> None:
        def some(probability: float) -> float:
            return probability if self.random.random() < 0.4 else 0.0

        keys = self.keys
        self.world.faults = Faults(
            statement_error=some(0.1),
            statement_slow=some(0.1),
            answer_lost=some(0.1),
            answer_late=some(0.05),
            mark_cut=some(0.03),
            ack_lost=some(0.1),
            ack_late=some(0.2),
            report_lost=some(0.02),
            point=some(0.01),
            refuse_keys={self.random.choice(keys): None} if self.random.random() < 0.3 else {},
            stall_keys={self.random.choice(keys): None} if self.random.random() < 0.3 else {},
        )

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
        if len(self.living()) < MEMBERS_MAX:
            self.spawn()

    def ignorant(self) -> None:
        """The coordinator has evicted a member that continues to produce and consume for a while."""
        if process := self.anyone():
            process.ignorant_until, process.is_evicted = self.world.now + 4.0, True
            for client in process.clients:
                client.evict()
            self.checkers.pauses[process.name] = self.checkers.pauses.get(process.name, 0) + 1
            self.world.group.leave(process.name)

    def stray(self) -> None:
        """An operator deletes a row by hand."""
        loose = [i for i, row in self.world.table.rows.items() if not row.key]
        if loose:
            self.world.table.delete(self.random.choice(loose))

    def goharvest(self) -> None:
        """A goharvest-compatible harvester's beat. Its wall clock may be years off: clocks jump, nobody here looks at
        one."""
        self.world.leader_topic.append(0, f"{self.random.getrandbits(60)}%reaper".encode())

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

    # ---- operators

    def operate(self) -> None:
        """They pause and resume, and decide about what is refused; in the end they leave nothing paused."""
        chance, holds = self.operators, self.world.table.hold_table
        if self.writing and chance.random() < 0.3:  # more to decide than the weather gives
            self.world.faults.refuse_keys = {chance.choice(self.keys): None}
            self.world.faults.statement_slow = self.world.faults.answer_lost = chance.choice((0.0, 0.2))
        if self.writing and chance.random() < 0.5:
            key = chance.choice(self.keys)
            hold = chance.choice(
                (
                    Hold(0, TOPIC, key, None, None, None, "paused"),
                    Hold(0, "", None, chance.randrange(self.world.lanes), None, None, "paused"),
                    Hold(0, TOPIC, None, None, None, None, "paused"),
                )
            )
            holds.place(hold)
        for hold in list(self.world.table.holds_by_id.values()):
            if hold.reason == "paused":
                if not self.writing or chance.random() < 0.3:
                    holds.delete([hold.id])
            elif not hold.wanted and chance.random() < 0.4:
                holds.want(hold.id, chance.choice(("retry", "skip", "discard")))
        self.world.after(chance.uniform(0.1, 0.6), self.operate)

    # ---- watching

    def sample(self) -> None:
        for lane in range(self.world.lanes):
            leaders = [
                p.name
                for p in self.world.processes
                if p.alive and not p.paused and p.kafka_ok and p.member.may_start(lane)
            ]
            self.checkers.leaders(lane, leaders)
        self.world.after(0.25, self.sample)

    def expire(self) -> None:
        self.world.group.expire()
        self.world.after(0.5, self.expire)


def _limits(plain: Callable[[Conf], values.Limits], conf: Conf) -> values.Limits:
    """What the settings do not say."""
    return replace(plain(conf), purge_max=2 if conf.at_least_once.mark_max == 3 else 50, rejection_backoff_max_s=3.0)


def _turn(turn: Callable[[Any], bool], worker: AtLeastOnce) -> bool:
    task: Any = getcurrent()
    task.is_trusted = worker._host.may_start(worker._lane)
    goes_on = turn(worker)
    task.runtime.world.checkers.limits(f"lane {worker._lane}", worker._board.statistics(), worker._board._limits)
    return goes_on


def _effects(effects: Callable[[Any], dict[type, Any]], statements: StatementRunner) -> dict[type, Any]:
    """Who takes the lane or marks is trusted at that moment, or was at the begin of the turn."""

    def checked(serve: Callable[[Any], None], effect: Any) -> None:
        task, host, lane = getcurrent(), statements._fatal.__self__, statements._lane  # type: ignore[attr-defined]
        is_trusted = task.is_trusted or host.may_start(lane)
        task.runtime.world.checkers.began(f"lane {lane}", effect, trusted=is_trusted)
        serve(effect)

    found = effects(statements)
    return found | {kind: partial(checked, found[kind]) for kind in (values.TakeLane, values.Mark)}


def _passed(name: str) -> None:
    runtime = getattr(getcurrent(), "runtime", None)
    if runtime is not None:
        runtime.passed(name)


@contextmanager
def sized() -> Iterator[None]:
    """Constants of the product that belong to waits of another size, and what the checkers look at."""
    with (
        patch.object(member, "GROUP_POLL_S", 0.15),
        patch.object(election_reader, "READ_POLL_S", 0.2),
        patch.object(election_reader, "AWAITED_POLL_S", 0.02),
        patch.object(at_least_once, "_REPORTS_BESIDE_STATEMENTS_S", 0.02),
        patch.object(at_least_once, "_REPORTS_ALONE_S", 0.05),
        patch.object(at_least_once, "_PAUSE_S", 0.02),
        patch.object(held, "_AGAIN_S", 2.0),
        patch.object(held, "_LOOK_S", 0.4),
        patch.object(*around(at_least_once, "limits", _limits)),
        patch.object(*around(AtLeastOnce, "_turn", _turn)),
        patch.object(*around(StatementRunner, "effects", _effects)),
        patch.object(failpoints, "on_passage", _passed),
    ):
        yield


def run(seed: int, rules: Rules = PLAIN, changed: Callable[[], AbstractContextManager[None]] = nullcontext) -> Outcome:
    """`changed`: what is planted in the product."""
    outcome: Outcome = run_seed("at_least_once", seed, _prepared(seed, rules, changed))
    return outcome


@contextmanager
def _prepared(seed: int, rules: Rules, changed: Callable[[], AbstractContextManager[None]]) -> Iterator[Scenario]:
    with sized(), changed():
        yield Scenario(seed, rules)
