"""Scenarios of exactly-once delivery: one seed decides who writes which records, and which faults occur when.

The product harvests: its lanes, readers, purges, takeovers, changes of the lane count and its producer. Threads, clock,
servers and the client of Kafka are simulated below it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any
from unittest.mock import patch

from greenlet import getcurrent

from outbox import failpoints
from outbox.conf import Conf, parse
from outbox.core.exactly_once import ledger
from outbox.core.exactly_once.resolution import is_sent_as_a_whole
from outbox.core.frontier import Frontier
from outbox.core.holds import book
from outbox.election import member
from outbox.election import reader as election_reader
from outbox.harvest.exactly_once import lane as exactly_once
from outbox.harvest.exactly_once.rounds import read_connection
from tests.simulation import world as surroundings
from tests.simulation.checkers import Violation
from tests.simulation.exactly_once.broker import TRANSACTION_TIMEOUT_S, Broker
from tests.simulation.exactly_once.checkers import TOPIC, Checkers, Written
from tests.simulation.exactly_once.database import STATEMENT_TIMEOUT_S
from tests.simulation.exactly_once.postgres import Postgres
from tests.simulation.exactly_once.process import Process
from tests.simulation.group import SESSION_TIMEOUT_S
from tests.simulation.leader_topic import Topic
from tests.simulation.runtime import LONG_S, SWITCHED_S
from tests.simulation.seeded import run_seed
from tests.support.settings import changed

FAULTS_S = 7.0
DRAIN_S = 60.0
MEMBERS_MAX = 4
_LANE_TO_RESOLVE = re.compile(r"outbox_resolve --lane (\d+)")
LOSSY, REFUSING, LAGGING, RESTLESS = 1, 2, 3, 4
"""Themes, by seed % 5: TRUNCATE and failover, after which a lane may have to stop; records that are refused; pages that
are late while copies take over beside the old server, or, of the even seeds, while the server crashes; threads that are
often switched while lanes come and go."""
CRASHING = LAGGING + 5
STUBBORN = LOSSY + 5
"""By seed % 10: of the lossy ones those in which records of every key are refused again and again."""


@dataclass
class Faults:
    """Probabilities per operation; all zero once the faults stop."""

    cut: float = 0.0
    cut_end: float = 0.0
    hold: float = 0.0
    held_s: tuple[float, float] = (0.3, 4.0)
    statement_error: float = 0.0
    statement_slow: float = 0.0
    answer_lost: float = 0.0
    answer_late: float = 0.0
    page_late: float = 0.0
    late_s: tuple[float, float] = (0.05, 1.0)
    produce_slow: float = 0.0
    point: float = 0.0
    refuse: dict[str, None] = field(default_factory=dict)
    refuse_here: dict[str, None] = field(default_factory=dict)
    names_refused: bool = False
    """The brokers name the records that they refuse."""
    limit: int = 0
    """Bytes that a topic takes at a time; 0: any number."""
    tells_limit: bool = True
    full: tuple[int, ...] = ()
    """Lanes whose clients have no room for a record."""
    placed_lost: float = 0.0
    actions_locked: float = 0.0
    notification_lost: float = 0.0
    broken: str = ""
    """No statement of connections with this name arrives."""
    slow_s: float = 0.0
    """For each request of records."""
    evicted: float = 0.0
    """And paused."""


@dataclass(frozen=True)
class Rules:
    """What the simulated servers guard in the place of PostgreSQL and of the client that reads the ledger."""

    guarded: bool = True
    waits_for_stable: bool = True


PLAIN = Rules()


@cache
def settings() -> Conf:
    """Few records in a page, and time-outs that pass within a scenario."""
    conf = parse({"BOOTSTRAP_SERVERS": "simulated:1", "NAME": "outbox"})
    return changed(
        conf,
        BATCH_MAX=8,
        STATEMENT_TIMEOUT=STATEMENT_TIMEOUT_S,
        TRANSACTION_TIMEOUT=TRANSACTION_TIMEOUT_S,
        COMMIT_TIMEOUT=0.8,
        HEARTBEAT_TIMEOUT=SESSION_TIMEOUT_S / 2,
        SESSION_TIMEOUT=SESSION_TIMEOUT_S,
        FLUSH_TIMEOUT=3.0,
        SWEEP_INTERVAL=86_400.0,
        MARK_BACKOFF=0.1,
    )


class NearFrontier(Frontier):
    """Looks back over so few ids that transactions lie further back than that."""

    def __init__(self) -> None:
        super().__init__(look_back_ids=20)


@contextmanager
def sized(further: Sequence[tuple[Any, str, Any]] = ()) -> Iterator[None]:
    """Constants of the product that belong to tables and waits of another size."""
    with (
        ExitStack() as stack,
        patch.object(member, "GROUP_POLL_S", 0.15),
        patch.object(election_reader, "READ_POLL_S", 0.2),
        patch.object(election_reader, "AWAITED_POLL_S", 0.02),
        patch.object(read_connection, "Frontier", NearFrontier),
        patch.object(exactly_once, "_PATIENCE_S", 0.05),
        patch.object(exactly_once, "_STOPPED_S", 0.5),
        patch.object(book, "_UNKNOWN_S", 3.0),
        patch.object(failpoints, "on_passage", _passed),
    ):
        for owner, name, value in further:
            stack.enter_context(patch.object(owner, name, value))
        yield


def _passed(name: str) -> None:
    runtime = getattr(getcurrent(), "runtime", None)
    if runtime is not None:
        runtime.passed(name)


class World(surroundings.World):
    faults: Faults

    def __init__(self, seed: int, checkers: Checkers) -> None:
        lanes = 3 if seed % 5 in (LAGGING, RESTLESS) else 1 + seed % 3
        super().__init__(seed, lanes=lanes, cooperative=seed % 4 != 0)
        self.seed, self.faults = seed, Faults()
        self.group.partitions = range(lanes)  # each has a leader, of an idle lane where fewer lanes are in use
        self.leader_topic = Topic(self)
        self.conf = changed(settings(), ASSIGNOR="cooperative-sticky" if self.group.cooperative else "range")
        if seed % 5 in (REFUSING, LAGGING):
            self.conf = changed(self.conf, BATCH_MAX=50 if seed % 10 == CRASHING else 4)
        self.switching = self.random.choice((0.0, 0.0, 0.002, 0.02))
        self.switched_s, self.steady = SWITCHED_S, ""
        if seed % 5 == LAGGING:
            self.switching, self.switched_s = self.random.choice((0.0, 0.1 if seed % 10 == CRASHING else 0.05)), LONG_S
            self.steady = "outbox-election"  # else lanes would be without an owner for most of the time
        elif seed % 5 == RESTLESS:
            self.switching, self.switched_s = self.random.choice((0.05, 0.2)), LONG_S
            self.conf = changed(self.conf, FLUSH_TIMEOUT=0.3)  # whoever has to give lanes back has little time
        self.kafka = Broker(self, checkers)
        self.postgres = Postgres(self, checkers, self.random.randint(1 + self.lanes // 2, self.lanes))
        self.postgres.is_plain = seed // 10 % 3 > 0
        self.tasks: list[Any] = []
        self.late: Callable[[float], None] = lambda delay_s: None
        self.evicted: Callable[[], None] = lambda: None
        self.turns: Any = None
        """Called when a client begins a transaction, and when it gets a record."""
        self.limits: dict[str, int] = {}
        """Rows of the page that each process has asked for last."""
        self.has_other_mode, self.leased_at = False, 0.0
        self.watches = False
        """Whether processes end without warning only for what they send."""
        self.poison: set[int] | None = None
        """Records that end every process that sends them."""
        self.poisoned: Callable[[Process, int], None] = lambda process, uid: None

    def fail(self, error: BaseException) -> None:
        """Something that no thread may survive: raised where it ends the scenario."""

        def end() -> None:
            raise Violation(f"a lane has ended: {error!r}") from error

        self.after(0.0, end)

    def struck(self, process: Process, name: str) -> None:
        """A fault at a chosen point of a process."""
        kind = self.random.choice(("pause", "pause", "crash", "cut"))
        if kind == "pause" and not process.paused:
            process.pause()
            self.after(self.random.choice((0.02, 0.3, 1.0, 3.0, 5.0)), process.resume)
        elif kind == "crash":
            process.crash()
        elif kind == "cut":
            for client in list(process.clients):
                client.cut()


@dataclass(frozen=True)
class Outcome:
    trace: int
    delivered: int
    batches: int
    seconds: float


class Scenario:
    faults_s = FAULTS_S
    sizes: Sequence[tuple[Any, str, Any]] = ()
    """Further constants of the product: where they are, their names and values."""

    def __init__(self, seed: int, rules: Rules = PLAIN) -> None:
        self.checkers = Checkers()
        self.world = World(seed, self.checkers)
        self.random = self.world.random
        self.is_lagging = seed % 5 == LAGGING
        self.is_lossy = seed % 5 == LOSSY or self.is_lagging
        self.is_restless, self.is_refusing = seed % 5 == RESTLESS, seed % 5 == REFUSING
        self.is_crashing, self.is_stubborn = seed % 10 == CRASHING, seed % 10 == STUBBORN
        if self.is_lagging:
            self.world.late = self.strike_late
        if not self.is_lossy and seed % 4 == 2:  # after a loss times tell single rows apart, if they are the server's
            self.world.postgres.supplied = Random(seed)
        self.world.kafka.hasty = seed % 3 == 1
        self.world.kafka.waits_for_stable, self.world.postgres.guarded = rules.waits_for_stable, rules.guarded
        self.world.kafka.markers_slow = self.random.choice((0.0, 0.3))
        self.flushed = self.random.choice((0.0, 0.5) if self.is_lagging else (0.0, 0.5, 1.0))
        self.keys = [f"k{i}" for i in range(self.random.choice((1, 3, 8)))]
        self.sequences = dict.fromkeys(self.keys, 0)
        self.locked: dict[str, None] = {}
        self.born = self.uid = 0
        self.humours = Random(seed)  # of its own: what else the seed means is not changed by them
        self.writing, self.refuses_all = True, False
        self.kept: Any = None

    def run(self) -> Outcome:
        world = self.world
        for _ in range(self.random.choice((1, 1, 2) if self.is_lagging else (1, 2, 3))):
            self.spawn()
        self.write()
        self.expire()
        self.operate()
        world.after(self.random.uniform(0.3, 1.5), self.strike)
        world.run_until(world.now + self.faults_s)
        self.settle()
        begun = world.now
        world.run_until(world.now + DRAIN_S, self.drained)
        self.check_end()
        sent = (record for lane in range(world.lanes) for _, record in world.kafka.ledger(lane).records)
        batches = sum(record[0] != ledger.BEGINNING for record in sent)
        return Outcome(world.trace, len(self.checkers.delivered), batches, world.now - begun)

    def check_end(self) -> None:
        self.checkers.finished(list(self.world.postgres.primary.now.rows))

    def drained(self) -> bool:
        data = self.world.kafka.data
        return not self.world.postgres.primary.now.rows and not self.locked and data.stable == data.end

    def living(self) -> list[Process]:
        return [p for p in self.world.processes if p.alive and not p.leaving]

    def spawn(self) -> None:
        self.born += 1
        Process(self.world, f"p{self.born}")

    # ---- applications

    def write(self) -> None:
        """One transaction: the row lock of its key is held from the first id to the end, as an application would."""
        if not self.writing:
            return
        key = self.random.choice([*self.keys, self.keys[0], ""])
        if key not in self.locked:
            self.begin(key)
        self.world.after(self.random.expovariate(40.0 if self.is_crashing else 10.0), self.write)

    def topic_of(self, key: str) -> str:
        return TOPIC

    def begin(self, key: str) -> None:
        database, rolled_back = self.world.postgres.primary, self.random.random() < 0.1
        xid = database.begin()
        first = self.sequences.get(key, 0)
        records = []
        for i in range(self.random.choice((1, 1, 2, 4))):
            self.uid += 1
            records.append(Written(self.uid, key, first + i, database.draw_id(), self.topic_of(key)))
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
        if self.is_restless:
            faults += ["join", "stop", "stop"] * 6
        if self.is_crashing:
            faults = ["stranger", "cut"]  # whoever is alone has several lanes
        elif self.is_lagging:
            faults += ["restart"] * 2 + ["fail_over"] * 4 + ["forget_a_change"] * 6
        elif self.is_lossy:
            faults += ["truncate"] * 4 + ["fail_over"] * 4 + ["forget_a_change"] * 8
        getattr(self, self.random.choice(faults))()
        if not self.living():
            self.spawn()
        self.world.after(self.random.uniform(0.1, 1.2), self.strike)

    def strike_late(self, delay_s: float) -> None:
        """A page is under way, or a thread stands still, for so long: meanwhile the server crashes, or a copy takes
        over that lags a little."""
        if self.writing and delay_s > 0.1 and self.random.random() < (0.9 if self.is_crashing else 0.5):
            soon_s = min(delay_s, 0.1) * self.random.random()
            self.world.after(soon_s, self.reinitialise if self.is_crashing else self.hand_over)

    def reinitialise(self) -> None:
        """And a lane of a process that has others is taken over, which asks on a connection of its own."""
        self.kept = None
        self.world.postgres.primary.crash(restarts=False)
        self.cut_one()

    def cut_one(self) -> None:
        for process in self.world.processes:
            if len(process.clients) > 1:
                self.random.choice(list(process.clients)).cut()

    def hand_over(self) -> None:
        if not self.writing:
            return
        kept, self.kept = self.world.postgres.primary.copied(), None

        def take_over() -> None:
            self.kept = kept
            self.fail_over()

        self.world.after(self.random.uniform(0.0, 0.15), take_over)

    def weather(self) -> None:
        share = 0.1 if self.is_lagging or self.is_refusing else 0.4

        def some(probability: float) -> float:
            return probability if self.random.random() < share else 0.0

        refused = {self.random.choice(self.keys): None}
        if self.is_stubborn:
            self.refuses_all = self.humours.random() < (0.7 if self.refuses_all else 0.3)
        self.world.faults = Faults(
            cut=0.05 if self.is_lagging else some(0.08),
            cut_end=0.3 if self.is_restless else some(0.3),
            hold=0.06 if self.is_lagging or self.is_restless else some(0.04),
            held_s=(0.1, 1.0) if self.is_lagging else (0.3, 4.0),
            statement_error=some(0.06),
            statement_slow=some(0.06),
            answer_lost=some(0.06),
            page_late=0.3 if self.is_lagging else some(0.02),
            late_s=(0.5, 0.98) if self.is_crashing else (0.05, 1.0),
            answer_late=some(0.02),
            produce_slow=0.3 if self.is_refusing else some(0.02),
            point=some(0.01),
            refuse=refused if self.random.random() < 0.1 else {},
            refuse_here=refused if self.random.random() < (0.7 if self.is_refusing else 0.1) else {},
        )
        if self.refuses_all:
            self.world.faults.refuse_here, self.world.faults.placed_lost = dict.fromkeys(self.keys), 0.2

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
        """The coordinator has evicted a member that continues to produce and consume for a while."""
        if process := self.anyone():
            process.ignorant_until = self.world.now + 2.0
            self.world.group.leave(process.name)

    def restart(self) -> None:
        self.world.postgres.primary.crash(restarts=self.random.random() < 0.5)
        self.kept = None

    def stranger(self) -> None:
        """A transaction that never touches the table."""
        server = self.world.postgres.primary
        xid = server.begin(writes=False)
        self.world.after(self.random.uniform(0.5, 3.0), lambda: server.end(xid))

    def resize(self) -> None:
        server = self.world.postgres.primary
        state = server.now.state
        if state.wanted is None and state.resize_to is None:
            wanted = self.random.randint(1, self.world.lanes)
            if wanted != state.lane_count:
                server.request(wanted)

    def truncate(self) -> None:
        if self.world.postgres.primary.truncate():
            self.kept = None
        else:
            self.world.after(0.02, self.truncate)

    def fail_over(self) -> None:
        """To a copy that lags by the time until now."""
        if self.kept is None:
            self.kept = self.world.postgres.primary.copied()
            self.world.after(self.random.uniform(0.05, 0.6), self.fail_over)
        else:
            kept, self.kept = self.kept, None
            lingers = self.is_lagging and self.random.random() < 0.7
            self.world.postgres.fail_over(kept, lingers=lingers)
            if lingers:
                self.part()

    def part(self) -> None:
        """Some connections to the old server last, for a while: mostly those that read."""
        for process in self.world.processes:
            for connection in process.connections:
                if self.random.random() < (0.2 if connection.name == "read" else 0.8):
                    connection.lose()
        self.cut_one()
        self.world.after(self.random.uniform(0.1, 3.0), self.world.postgres.remove_old)

    def forget_a_change(self) -> None:
        """To a copy from before a change of the lane count."""
        if self.kept is None:
            self.kept = self.world.postgres.primary.copied()
            self.resize()
            self.world.after(self.random.uniform(0.2, 2.0), self.fail_over_to_it)

    def fail_over_to_it(self) -> None:
        if self.kept is not None:
            self.fail_over()

    def settle(self) -> None:
        """The faults stop: everybody who lives is connected and runs."""
        self.writing = False
        self.world.faults = Faults()
        self.world.postgres.remove_old()
        for process in self.world.processes:
            if process.alive and process.paused:
                process.resume()
            process.reconnect()
        if not self.living():
            self.spawn()

    # ---- the operator

    def operate(self) -> None:
        """What `outbox_resolve --delete-sent` does, for lanes that have stopped; nothing else may stop one."""
        for process in self.living():
            for reason in process.stopped_for():
                lanes = _LANE_TO_RESOLVE.findall(reason)
                if not (self.is_lossy and lanes):
                    raise Violation(f"stopped without a cause: {reason}")
                self.resolve(int(lanes[0]))
        self.world.after(0.7, self.operate)

    def resolve(self, lane: int) -> None:
        server, log = self.world.postgres.primary, self.world.kafka.ledger(lane)
        if log.stable < log.end or server.held:
            return
        now = server.now
        committed = (record for transaction, record in log.records if transaction.commits)
        entries = [ledger.decode(*record) for record in committed if record[0] != ledger.BEGINNING]
        for entry in entries:
            if entry.batch > now.purged.get(lane, 0):
                found = server.look_up(entry.ids)
                whole = is_sent_as_a_whole(entry, found.count, found.digest, found.newest)
                for id_ in entry.ids if whole is not False else ():
                    if id_ in now.rows and (whole or now.rows[id_].create_time <= entry.up_to):
                        self.checkers.purged(now.rows.pop(id_).uid)
        now.purged[lane] = entries[-1].batch if entries else 0

    def expire(self) -> None:
        self.world.group.expire()
        self.world.after(0.5, self.expire)


def run(seed: int, rules: Rules = PLAIN, changed: Callable[[], AbstractContextManager[None]] = nullcontext) -> Outcome:
    """`changed`: what is planted in the product."""
    outcome: Outcome = run_seed("exactly_once", seed, _prepared(seed, rules, changed))
    return outcome


@contextmanager
def _prepared(seed: int, rules: Rules, changed: Callable[[], AbstractContextManager[None]]) -> Iterator[Scenario]:
    from tests.simulation.exactly_once.themes import scenario_of  # which are made of what is here

    scenario = scenario_of(seed, rules)
    with sized(scenario.sizes), changed():
        yield scenario
