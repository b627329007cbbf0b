"""Scenarios of consumers: from one seed, who writes what and which faults strike when.

What consumes is the product: its member, workers, the thread that watches over topics, and all that they decide.
Threads, clock, PostgreSQL, the topic and the group are simulated below it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any
from unittest.mock import patch

from greenlet import getcurrent

from outbox import failpoints
from outbox.consumers import assignment, member, topics
from outbox.consumers.work import worker
from outbox.core.consumers import failing
from outbox.core.consumers import log as core_log
from outbox.core.consumers.holding import DISCARD, POISON, RETRY, SKIP, WAITING
from outbox.core.consumers.values import DEAD_LETTER, EARLIEST, HOLD, LATEST, STOP, ConsumerOptions, Partition, Position
from tests.simulation import world as surroundings
from tests.simulation.checkers import Violation
from tests.simulation.consumers.checkers import Written
from tests.simulation.consumers.database import Server
from tests.simulation.consumers.process import Process
from tests.simulation.consumers.topic import TOPIC, Log, Topic
from tests.simulation.seeded import run_seed

FAULTS_S = 8.0
DRAIN_S = 200.0
MEMBERS_MAX = 4
THEMES = 5
PLAIN, LAGGING, LOGS, RESTLESS, ENDING = range(THEMES)
"""Themes, by seed % THEMES: nothing but faults of processes and connections; failovers to copies that lag; topics that
are truncated, expired and created again; many rebalances, and functions that fail; functions that end the transaction
themselves, in one process at a time."""


@dataclass
class Faults:
    """Probabilities per operation; all zero once the faults stop."""

    cut: float = 0.0
    cut_commit: float = 0.0
    commit_late: float = 0.0
    no_connection: float = 0.0
    no_metadata: float = 0.0
    slow: float = 0.0
    hang: float = 0.0
    asks: float = 0.0
    conflict: float = 0.0
    raw_rollback: float = 0.0
    raw_commit: float = 0.0
    point: float = 0.0

    def calm(self) -> None:
        for fault in fields(self):
            setattr(self, fault.name, 0.0)


@contextmanager
def sized() -> Iterator[None]:
    """Constants of the product that belong to waits of another length."""
    with ExitStack() as stack:
        for owner, name, value in (
            (assignment, "LOOK_S", 0.5),
            (assignment, "HELD_S", 0.2),
            (failing, "KEYS", 4),
            (failing, "FIRST_S", 0.1),
            (assignment, "QUEUE_MAX", 40),
            (member, "COPY_S", 0.5),
            (topics, "LOOK_S", 0.2),
            (topics, "IDS_S", 0.5),
            (worker, "OUTAGE_S", (0.05, 0.5)),
            (core_log, "BOUNDS_S", 3.0),
            (failpoints, "on_passage", _passed),
        ):
            stack.enter_context(patch.object(owner, name, value))
        yield


def _passed(name: str) -> None:
    runtime = getattr(getcurrent(), "runtime", None)
    if runtime is not None:
        runtime.passed(name)


class World(surroundings.World):
    faults: Faults

    def __init__(self, seed: int) -> None:
        theme = seed % THEMES
        partitions = 1 + seed // THEMES % 3
        super().__init__(seed, lanes=partitions, cooperative=seed % 3 != 0)
        self.seed, self.faults = seed, Faults()
        self.group.partitions = range(partitions)
        self.switching = self.random.choice((0.0, 0.0, 0.01, 0.05))
        self.threads = 1 if theme == ENDING else self.random.choice((1, 1, 2))
        self.options = ConsumerOptions(
            "shop.orders",
            start=EARLIEST if theme == LOGS else self.random.choice((EARLIEST, LATEST)),
            batch=12 if theme == LOGS else self.random.choice((1, 4, 12)),
            many=self.random.random() < 0.2,
            timeout_s=3.0,
            attempts=3,
            backoff_s=0.1,
            on_error=(HOLD, DEAD_LETTER, HOLD, STOP)[seed // THEMES % 4],
        )
        self.tasks: list[Any] = []
        self.topic = Topic(self, partitions)
        self.primary = Server(self)
        self.committed: dict[int, None] = {}
        """Transactions, of any server that was the primary one."""
        self.written: dict[int, Written] = {}
        self.failing: dict[int, int] = {}
        """How often the function fails yet, for messages."""
        self.not_yet: dict[int, int] = {}
        """How often the function postpones them yet."""
        may_repeat = self.options.start == EARLIEST and self.options.on_error == HOLD
        self.repeats = theme in (PLAIN, RESTLESS) and may_repeat
        """Whether messages are produced more than once."""
        self.crashing: dict[int, None] = {}
        """Those end the process that handles them."""
        self.deaths: dict[int, int] = {}
        self.broken_until = 0.0
        """The function fails with every message."""
        self.poison: dict[int, None] = {}
        self.left_out: dict[int, None] = {}
        self.begun: dict[Partition, int] = {}
        self.no_fetch_until = self.watermark_lags_until = 0.0
        self.other_topics: list[str] = []
        self.leaderless: set[Partition] = set()
        self._xids = self._ids = 0
        self.is_ended_by_hand = False
        """A function has committed effects without their position. An operator has to set that."""
        self.replace: Callable[[], None] = lambda: None
        self.decide: Callable[[], None] = lambda: None

    def new_xid(self) -> int:
        self._xids += 1
        return self._xids

    def new_id(self) -> int:
        self._ids += 1
        return self._ids

    def hooked(self, xid: int) -> None:
        if xid not in self.committed:
            self.fail(Violation(f"hooks of transaction {xid} run, and it is not committed"))

    def fail(self, error: BaseException) -> None:
        """Something that no thread may survive: raised where it ends the scenario."""

        def end() -> None:
            raise Violation(f"a thread has ended: {error!r}") from error

        self.after(0.0, end)

    def struck(self, process: Process, name: str) -> None:
        """A fault at a chosen point of a process."""
        self.note("struck", process.name, name)
        kind = self.random.choice(("pause", "pause", "crash", "evict"))
        if kind == "crash":
            process.crash()
            self.after(0.3, self.replace)
            return
        if kind == "evict" and self.group.others(process.name):
            self.group.leave(process.name)
        process.pause()
        self.after(self.random.choice((0.02, 0.3, 1.0, 3.0, 5.0)), process.resume)


@dataclass(frozen=True)
class Outcome:
    trace: int
    handled: int
    seconds: float


class Scenario:
    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.random = self.world.random
        self.theme = seed % THEMES
        self.keys = [f"k{i}" for i in range(self.random.choice((1, 4, 9)))]
        self.sequences: dict[str, int] = {}
        self.partitions = len(self.world.topic.logs)
        self.uid = self.born = 0
        self.creates_again = self.theme == LOGS and seed // THEMES % 2 == 0
        self.is_writing, self.is_deciding = True, False
        self.was_created_again = False
        self.kept: Server | None = None
        self.world.replace = self.replace
        self.world.decide = self.stop_and_decide

    def run(self) -> Outcome:
        world = self.world
        for _ in range(self.random.choice((0, 5, 40))):
            self.produce(self.random.choice(self.keys))
        for _ in range(1 if self.theme == ENDING else self.random.choice((1, 2, 3))):
            self.spawn()
        self.write()
        self.expire()
        self.operate()
        if self.creates_again:
            world.after(self.random.uniform(1.0, 6.0), self.create_again)
        world.after(self.random.uniform(0.3, 1.5), self.strike)
        world.run_until(world.now + FAULTS_S)
        self.settle()
        begun = world.now
        kept = world.primary.copied()
        world.run_until(world.now + DRAIN_S, self.drained)
        if self.theme == LAGGING and kept.rows.keys() >= world.topic.logs.keys():
            self._replace_server(kept)  # and no later message leads to what it has forgotten
            world.run_until(world.now + DRAIN_S, self.drained)
        for process in world.processes:
            if process.is_alive:
                process.check()
        world.primary.effects.require(self.required(), world.left_out)
        return Outcome(world.trace, len(world.primary.effects.handled), world.now - begun)

    def required(self) -> list[Written]:
        return [
            message
            for partition, found in self.world.topic.logs.items()
            for offset, _, message in found.entries
            if offset >= self.first(partition)
        ]

    def first(self, partition: Partition) -> int:
        """From where on a consumer has to handle its messages."""
        if self.world.options.start == EARLIEST or partition.number >= self.partitions or self.was_created_again:
            return 0
        return self.world.begun.get(partition, 0)

    def drained(self) -> bool:
        handled = self.world.primary.effects.handled
        return all(m.uid in handled or m.uid in self.world.left_out for m in self.required())

    def decide_about_held(self) -> None:
        """Of messages that are not tried again by themselves."""
        server = self.world.primary
        for id_, one in list(server.held.items()):
            uid = int(one.message.value or b"")
            if one.reason == POISON and uid not in self.world.crashing:
                raise Violation(f"message {uid} is held as poison, and has ended no process")
            if one.is_dead:
                self.world.left_out[uid] = None
            elif one.next_at is None and one.reason != WAITING and not one.wanted:
                if uid in self.world.poison or uid in self.world.crashing:
                    self.world.left_out[uid] = None
                    server.held[id_] = replace(one, wanted=self.random.choice((SKIP, DISCARD)))
                else:
                    server.held[id_] = replace(one, wanted=RETRY)

    def living(self) -> list[Process]:
        return [process for process in self.world.processes if process.is_alive and not process.is_leaving]

    def spawn(self) -> None:
        self.born += 1
        Process(self.world, f"p{self.born}")

    def replace(self) -> None:
        if not self.living() and not self.is_deciding:
            self.spawn()

    # ---- who writes

    def produce(self, key: str) -> None:
        self.uid += 1
        sequence = self.sequences[key] = self.sequences.get(key, -1) + 1
        message = self.world.written[self.uid] = Written(self.uid, key, sequence)
        log = self.world.topic.logs[Partition(TOPIC, self.number_of(key))]
        for _ in range(2 if self.world.repeats and self.random.random() < 0.2 else 1):
            log.append(message, marks=self.random.choice((0, 0, 1)))
        if self.world.repeats and self.random.random() < 0.05:
            self.world.after(self.random.uniform(0.0, 2.0), lambda: log.append(message, marks=0))
        if self.theme == RESTLESS and self.is_writing:
            draw = self.random.random()
            if draw < 0.04:
                self.world.failing[self.uid] = self.random.choice((1, 2, 4))
            elif draw > 0.96:
                self.world.not_yet[self.uid] = self.random.choice((1, 3))
            elif draw < 0.045:
                self.world.poison[self.uid] = None
            elif draw < 0.047 and not self.world.crashing:
                self.world.crashing[self.uid] = None

    def write(self) -> None:
        if self.is_writing:
            for _ in range(self.random.choice((1, 1, 5))):
                self.produce(self.random.choice(self.keys))
            self.world.after(self.random.expovariate(3.0 if self.creates_again else 15.0), self.write)

    # ---- faults

    def strike(self) -> None:
        if not self.is_writing:
            return
        if self.world.is_ended_by_hand:
            self.world.after(0.5, self.strike)
            return
        self.weather()
        faults = ["crash", "pause", "pause", "stop", "join", "cut_off", "restart", "add_partition", "silence"]
        if self.theme == ENDING:
            faults = ["crash", "pause", "pause", "cut_off", "restart"]
        elif self.theme == LAGGING:
            faults += ["fail_over"] * 8
        elif self.theme == LOGS:
            faults += ["truncate", "lose_old", "lag"] * 3
        elif self.theme == RESTLESS:
            faults += ["join", "stop", "evict"] * 4 + ["break_function"] * 2
        getattr(self, self.random.choice(faults))()
        self.replace()
        self.world.after(self.random.uniform(0.1, 1.2), self.strike)

    def weather(self) -> None:
        def some(probability: float) -> float:
            return probability if self.random.random() < 0.4 else 0.0

        self.world.faults = Faults(
            cut=some(0.03),
            cut_commit=some(0.4 if self.theme == PLAIN else 0.15),
            commit_late=some(0.2),
            no_connection=some(0.1),
            no_metadata=some(0.1),
            slow=some(0.1),
            hang=some(0.002),
            asks=some(0.3),
            conflict=some(0.02),
            raw_rollback=(raw := 0.02 if self.theme == ENDING else 0.0),
            raw_commit=raw,
            point=0.05 if self.theme == RESTLESS else some(0.02),
        )

    def anyone(self) -> Process | None:
        living = self.living()
        return self.random.choice(living) if living else None

    def crash(self) -> None:
        if process := self.anyone():
            process.crash()
            self.world.after(self.random.uniform(0.05, 1.0), self.replace)

    def pause(self) -> None:
        process = self.anyone()
        if process and not process.is_paused:
            process.pause()
            self.world.after(self.random.choice((0.3, 1.0, 3.0, 8.0)), process.resume)

    def stop(self) -> None:
        if process := self.anyone():
            process.stop()
            self.replace()

    def join(self) -> None:
        if len(self.living()) < MEMBERS_MAX and not self.is_deciding:
            self.spawn()

    def evict(self) -> None:
        """The coordinator has lost patience with a process, which consumes on for a while."""
        process = self.anyone()
        if process and self.world.group.others(process.name):
            self.world.group.leave(process.name)

    def break_function(self) -> None:
        self.world.broken_until = self.world.now + self.random.choice((0.1, 0.5, 2.0))

    def cut_off(self) -> None:
        if process := self.anyone():
            process.database_ok = False
            for transaction in process.transactions:
                if transaction.session is not None:
                    transaction.session._cut()

            def restore() -> None:
                process.database_ok = True

            self.world.after(self.random.choice((0.1, 1.0, 2.0)), restore)

    def restart(self) -> None:
        """The server crashes, and has all that was committed."""
        self._replace_server(self.world.primary.copied())

    def fail_over(self) -> None:
        """To a copy that lags by the time until now."""
        if not self.is_writing:
            return
        if self.kept is None:
            self.kept = self.world.primary.copied()
            self.world.after(self.random.uniform(0.05, 1.5), self.fail_over)
        else:
            kept, self.kept = self.kept, None
            if kept.rows.keys() >= self.world.topic.logs.keys():
                self._replace_server(kept)

    def _replace_server(self, server: Server) -> None:
        old, self.world.primary, self.kept = self.world.primary, server, None
        self.world.note("server", len(server.effects.handled))
        old.fail()

    def silence(self) -> None:
        """The brokers send nothing."""
        self.world.no_fetch_until = self.world.now + self.random.choice((0.3, 1.5))

    def lag(self) -> None:
        """A new leader does not know yet how far its log reaches."""
        if self.world.now > self.world.watermark_lags_until + 2.0:
            self.world.watermark_lags_until = self.world.now + self.random.choice((0.3, 2.0))

    def add_partition(self) -> None:
        if len(self.world.topic.logs) < self.partitions + 2 and self.world.primary.rows and not self.is_deciding:
            number = len(self.world.topic.logs)
            self.world.topic.logs[Partition(TOPIC, number)] = Log(epoch=0 if self.was_created_again else 3)
            self.keys.append(f"new{number}")
            for _ in range(self.random.choice((0, 3))):
                self.produce(f"new{number}")

            def known() -> None:
                self.world.group.partitions = range(len(self.world.topic.logs))
                self.world.group.balance()

            self.world.after(self.random.uniform(0.0, 0.5), known)

    def has_epochs(self) -> bool:
        """Without one a position cannot be told from the same offset of another log, until the id is asked for."""
        rows = self.world.primary.rows
        found = [rows.get(partition) for partition in self.world.topic.logs]
        return all(row is not None and (row.leader_epoch > 0 or not row.next) for row in found)

    def truncate(self) -> None:
        partition, found = self.random.choice(list(self.world.topic.logs.items()))
        if self.has_epochs() and len(found.entries) > 2 and not self.is_deciding:
            found.truncate(len(found.entries) - self.random.randint(1, min(20, len(found.entries) - 1)))
            self.world.topic.changed.add(partition)
            self.produce_many(partition)

    def create_again(self) -> None:
        if not self.is_writing:
            return
        if not self.has_epochs() or self.is_deciding:
            self.world.after(0.1, self.create_again)
        else:
            self.was_created_again = True
            ends = {partition: found.end for partition, found in self.world.topic.logs.items()}
            self.world.topic.create_again()
            is_longer = self.random.random() < 0.5
            for partition, end in ends.items():
                self.produce_many(partition, end + 10 if is_longer else 0)

    def produce_many(self, partition: Partition, least: int = 0) -> None:
        """Perhaps more than there were."""
        keys = [key for key in self.keys if self.number_of(key) == partition.number]
        for _ in range(max(least, self.random.choice((0, 3, 30))) if keys else 0):
            self.produce(self.random.choice(keys))

    def number_of(self, key: str) -> int:
        return int(key[3:]) if key.startswith("new") else zlib.crc32(key.encode()) % self.partitions

    def lose_old(self) -> None:
        partition, found = self.random.choice(list(self.world.topic.logs.items()))
        if not self.is_deciding:
            found.expire(self.random.choice((1, 10, len(found.entries))))
            self.world.topic.changed.add(partition)

    def settle(self) -> None:
        """The faults stop: every process that lives is connected and runs."""
        self.is_writing = False
        self.world.faults = Faults()
        for process in self.world.processes:
            process.database_ok = True
            if process.is_alive and process.is_paused:
                process.resume()
        self.world.watermark_lags_until = self.world.no_fetch_until = self.world.now
        self.replace()

    def expire(self) -> None:
        self.world.group.expire()
        self.world.after(0.5, self.expire)

    # ---- the operator

    def operate(self) -> None:
        """What `outbox_positions` does, for partitions that have stopped; nothing else may stop one."""
        self.decide_about_held()
        stopped = {partition: reason for process in self.living() for partition, reason in process.stopped.items()}
        for partition, reason in stopped.items():
            is_poison = ("failed 3 times" in reason or "the process ended" in reason) and self.theme == RESTLESS
            if not is_poison and partition not in self.world.topic.changed:
                raise Violation(f"stopped without a cause: {reason}")
        if stopped:
            self.stop_and_decide(list(stopped))
        self.world.after(0.7, self.operate)

    def stop_and_decide(self, partitions: list[Partition] | None = None) -> None:
        """Without partitions: about all that have a position."""
        if not self.is_deciding:
            self.is_deciding = True
            for process in self.world.processes:
                process.crash()
            found = list(self.world.primary.rows) if partitions is None else partitions
            self.world.after(0.3, lambda: self.decide(found))

    def decide(self, partitions: list[Partition]) -> None:
        """Only while nobody consumes."""
        server = self.world.primary
        if any(session.commits for session in server.sessions) or server.locks:
            self.world.after(0.2, lambda: self.decide(partitions))
            return
        for partition in partitions:
            at, log = self.behind_the_last(partition), self.world.topic.logs[partition]
            epoch = max((epoch for offset, epoch, _ in log.entries if offset < at), default=-1)
            server.rows[partition] = Position(at, self.world.topic.id, epoch)
        self.kept = None
        self.is_deciding = self.world.is_ended_by_hand = False
        self.spawn()

    def behind_the_last(self, partition: Partition) -> int:
        """Of what was handled in the log; and behind a message that can never be handled."""
        found, handled = self.world.topic.logs[partition], self.world.primary.effects.handled
        done = [offset for offset, _, message in found.entries if message.uid in handled]
        at = max([done[-1] + 1 if done else self.first(partition), found.first])
        for offset, _, message in found.read(at, len(found.entries)):
            if message.uid not in self.world.poison and message.uid not in self.world.crashing:
                break
            self.world.left_out[message.uid] = None
            at = offset + 1
        return at


def run(seed: int, changed: Callable[[], AbstractContextManager[None]] = nullcontext) -> Outcome:
    """`changed`: what is planted in the product."""
    outcome: Outcome = run_seed("consumers", seed, _prepared(seed, changed))
    return outcome


@contextmanager
def _prepared(seed: int, changed: Callable[[], AbstractContextManager[None]]) -> Iterator[Scenario]:
    with sized(), changed():
        yield Scenario(seed)
