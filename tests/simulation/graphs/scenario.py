"""Scenarios of graphs: from one seed, what a processor is, who writes what, and which faults strike when.

What runs is the product: the member, the lanes, their producers, and all that they decide. Threads, clock, brokers and
the group are simulated below it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import Any
from unittest.mock import patch

from greenlet import getcurrent

from outbox import failpoints
from outbox.core.graphs.declaration import GraphGiven, ProcessorGiven, graph_of
from outbox.core.graphs.lane import LaneLife
from outbox.core.graphs.values import Processor, ProcessorKind, Strategy
from outbox.graphs import assignment, lane_worker
from tests.simulation import world as surroundings
from tests.simulation.checkers import Violation
from tests.simulation.graphs.broker import GraphBroker
from tests.simulation.graphs.process import Process
from tests.simulation.seeded import run_seed

FAULTS_S, DRAIN_S, MEMBERS_MAX = 6.0, 120.0, 4
MARKERS_S = 1.0
"""Each partition has the marker of a transaction by then."""
THEMES = 5
PIPE, JOIN, ALTS, FORK, OTHERS = range(THEMES)
"""Themes, by seed % THEMES: the kind of the processor; the last one has the other strategies."""


@dataclass
class Faults:
    """Probabilities per operation; all zero once the faults stop."""

    cut: float = 0.0
    cut_end: float = 0.0
    hold: float = 0.0
    held_s: tuple[float, float] = (0.3, 3.0)
    slow_s: float = 0.0
    slow: float = 0.0
    full: float = 0.0
    no_topic: float = 0.0
    point: float = 0.0

    def calm(self) -> None:
        for fault in fields(self):
            if fault.name != "held_s":
                setattr(self, fault.name, 0.0)


def _one(message: Any) -> None: ...


def _pair(left: Any, right: Any) -> None: ...


def processor_of(theme: int, random: Any) -> Processor:
    kind = {PIPE: ProcessorKind.PIPE, JOIN: ProcessorKind.JOIN, ALTS: ProcessorKind.ALTS}.get(theme, ProcessorKind.FORK)
    inputs: Any = {ProcessorKind.JOIN: {"left": "x", "right": "y"}, ProcessorKind.ALTS: ["x", "y"]}.get(kind, "x")
    strategy = Strategy.EXACTLY_ONCE
    if theme == OTHERS:
        strategy = random.choice((Strategy.AT_LEAST_ONCE, Strategy.AT_MOST_ONCE))
    given = ProcessorGiven(
        kind=kind,
        name="p",
        inputs=inputs,
        to={"a": "a", "b": "b"} if kind is ProcessorKind.FORK else "a",
        function=_pair if kind is ProcessorKind.JOIN else _one,
        strategy=strategy,
        on_error="topic:errors",
        attempts=1 if strategy is Strategy.AT_MOST_ONCE else random.choice((1, 3)),
        backoff=0.1,
        batch=random.choice((1, 4, 12)),
    )
    return graph_of(GraphGiven(name="graph", processors=[given])).processors[0]


@contextmanager
def sized() -> Iterator[None]:
    """Constants of the product that belong to waits of another length."""
    with ExitStack() as stack:
        for owner, name, value in (
            (lane_worker, "OUTAGE_S", (0.02, 0.3)),
            (lane_worker, "WAKE_S", 0.1),
            (lane_worker, "LOOK_S", 1.0),
            (lane_worker, "TAKEOVER_S", 5.0),
            (assignment, "REVOKE_S", 0.5),
            (lane_worker.GraphLaneWorker, "_stop", _stopped),
            (failpoints, "on_passage", _passed),
        ):
            stack.enter_context(patch.object(owner, name, value))
        yield


def _stopped(worker: lane_worker.GraphLaneWorker, reason: str) -> None:
    """Nothing in a scenario makes a lane stop, not even that of an owner that is one no more."""
    raise Violation(f"{worker.lane.processor.name} has stopped: {reason}")


def _passed(name: str) -> None:
    runtime = getattr(getcurrent(), "runtime", None)
    if runtime is not None:
        runtime.passed(name)


class World(surroundings.World):
    faults: Faults
    turns = None

    def __init__(self, seed: int) -> None:
        partitions = 1 + seed // THEMES % 3
        super().__init__(seed, lanes=partitions, cooperative=False)
        self.seed, self.faults, self.theme = seed, Faults(), seed % THEMES
        self.group.partitions = range(partitions)
        self.switching = self.random.choice((0.0, 0.0, 0.01, 0.05))
        self.processor = processor_of(self.theme, self.random)
        self.kafka = GraphBroker(self, self.processor.topics, partitions)
        self.kafka.markers_slow = self.random.choice((0.0, 0.0, 0.3))
        self.tasks: list[Any] = []
        self.refused: set[bytes] = set()
        self.failing: dict[int, int] = {}
        self.empty: dict[int, None] = {}
        self.crashing: dict[int, None] = {}
        self.deaths: dict[int, int] = {}
        self.calls: dict[int, int] = {}
        self.firsts: dict[Any, Any] = {}
        self.attempts: dict[Any, None] = {}
        self.expected: dict[str, str] = {}
        """The name of each step, and of the first of its messages."""
        self.replace: Callable[[], None] = lambda: None

    def fail(self, error: BaseException) -> None:
        def end() -> None:
            raise Violation(f"a thread has ended: {error!r}") from error

        self.after(0.0, end)

    def check_visible(self, name: str) -> None:
        if self.kafka.visible[name] > 1 and self.processor.strategy is not Strategy.AT_LEAST_ONCE:
            raise Violation(f"the output {name!r} is there {self.kafka.visible[name]} times")

    def struck(self, process: Process, name: str) -> None:
        """A fault at a chosen point of a process."""
        self.note("struck", process.name, name)
        if self.random.random() < 0.4:
            process.crash()
            return
        if self.random.random() < 0.5 and self.group.others(process.name):
            self.group.leave(process.name)
        process.pause()
        self.after(self.random.choice((0.02, 0.3, 1.0, 3.0, 7.0)), process.resume)


@dataclass(frozen=True)
class Outcome:
    trace: int
    steps: int
    seconds: float


class Scenario:
    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.random = self.world.random
        self.uid = self.born = 0
        self.is_writing = True
        self.queues: dict[tuple[str, int], list[tuple[bytes, int]]] = {}
        self.errors: set[int] = set()
        self.world.replace = self.replace

    def run(self) -> Outcome:
        world = self.world
        for _ in range(self.random.choice((0, 5, 30))):
            self.produce()
        for _ in range(self.random.choice((1, 2, 3))):
            self.spawn()
        self.write()
        self.expire()
        world.after(self.random.uniform(0.3, 1.0), self.strike)
        world.run_until(world.now + FAULTS_S)
        self.settle()
        begun = world.now
        world.run_until(world.now + DRAIN_S, self.drained)
        world.run_until(world.now + MARKERS_S)
        self.check()
        return Outcome(world.trace, len(world.kafka.seen), world.now - begun)

    # ---- who writes

    def produce(self) -> None:
        world, number = self.world, self.random.randrange(self.world.kafka.partitions)
        topics = world.processor.topics
        key = b"k%d" % self.random.randrange(3)
        chosen = topics if world.processor.is_join else (self.random.choice(topics),)
        uids = []
        for topic in chosen:
            self.uid += 1
            uids.append(self.uid)
            delay = self.random.choice((0.0, 0.0, 0.1, 0.5)) if len(chosen) > 1 and self.is_writing else 0.0
            self.append(topic, number, key, self.uid, delay)
        draw = self.random.random()
        if draw < 0.03:
            world.failing[uids[0]] = self.random.choice((1, 2, 4))
        elif draw < 0.06:
            world.empty[uids[0]] = None
        elif draw < 0.08:
            world.refused.add(f"{'+'.join(map(str, uids))}:a".encode())
        elif draw < 0.085 and not world.crashing:
            world.crashing[uids[0]] = None
        world.expected["+".join(map(str, uids))] = str(uids[0])

    def append(self, topic: str, number: int, key: bytes, uid: int, delay: float) -> None:
        """Messages of one partition are written in order, whatever the delay of each."""
        log = self.world.kafka.sources[topic, number]
        queue = self.queues.setdefault((topic, number), [])
        queue.append((key, uid))

        def write() -> None:
            if queue:
                log.append(*queue.pop(0), marks=self.random.choice((0, 0, 1)))

        self.world.after(delay, write)

    def write(self) -> None:
        if self.is_writing:
            for _ in range(self.random.choice((1, 1, 5))):
                self.produce()
            self.world.after(self.random.expovariate(12.0), self.write)

    # ---- faults

    def living(self) -> list[Process]:
        return [process for process in self.world.processes if process.is_alive and not process.is_leaving]

    def spawn(self) -> None:
        self.born += 1
        Process(self.world, f"p{self.born}")

    def replace(self) -> None:
        if not self.living():
            self.spawn()

    def expire(self) -> None:
        self.world.group.expire()
        self.require_no_stop()
        self.world.after(0.2, self.expire)

    def require_no_stop(self) -> None:
        for process in self.world.processes:
            if process.is_alive:
                for number, (life, reason) in process.processing.states.items():
                    if life is LaneLife.STOPPED:
                        raise Violation(f"lane {number} has stopped: {reason}")

    def strike(self) -> None:
        if not self.is_writing:
            return

        def some(probability: float) -> float:
            return probability if self.random.random() < 0.4 else 0.0

        self.world.faults = Faults(
            cut=some(0.03),
            cut_end=some(0.5),
            hold=some(0.02),
            slow=some(0.1),
            full=some(0.02),
            no_topic=some(0.05),
            point=some(0.03),
        )
        getattr(self, self.random.choice(("crash", "pause", "pause", "stop", "join", "join", "evict", "cut_off")))()
        self.replace()
        self.world.after(self.random.uniform(0.1, 0.9), self.strike)

    def anyone(self) -> Process | None:
        living = self.living()
        return self.random.choice(living) if living else None

    def crash(self) -> None:
        if process := self.anyone():
            process.crash()

    def pause(self) -> None:
        process = self.anyone()
        if process and not process.is_paused:
            process.pause()
            self.world.after(self.random.choice((0.3, 1.0, 3.0, 7.0)), process.resume)

    def stop(self) -> None:
        if process := self.anyone():
            process.stop()

    def join(self) -> None:
        if len(self.living()) < MEMBERS_MAX:
            self.spawn()

    def evict(self) -> None:
        process = self.anyone()
        if process and self.world.group.others(process.name):
            self.world.group.leave(process.name)

    def cut_off(self) -> None:
        if process := self.anyone():
            process.kafka_ok = False

            def restore() -> None:
                process.kafka_ok = True

            self.world.after(self.random.choice((0.1, 1.0, 2.0)), restore)

    # ---- the end

    def settle(self) -> None:
        self.is_writing = False
        self.world.faults.calm()
        self.world.kafka.markers_slow = 0.0
        for process in self.world.processes:
            process.kafka_ok = True
            if process.is_paused:
                process.resume()
        self.replace()

    def drained(self) -> bool:
        kafka = self.world.kafka
        return all(
            kafka.committed[number].get(topic, 0) > log.entries[-1][0]
            for (topic, number), log in kafka.sources.items()
            if log.entries
        ) and all(len(queue) == 0 for queue in self.queues.values())

    def check(self) -> None:
        world = self.world
        self.require_no_stop()
        if not self.drained():
            raise Violation("messages are left")
        names = {stream.binding if len(world.processor.outputs) > 1 else "a" for stream in world.processor.outputs}
        self.errors = self.with_errors()
        for step, first in world.expected.items():
            self.check_step(step, int(first), {f"{step}:{name}" for name in names})

    def with_errors(self) -> set[int]:
        """The first message of each step that has an error record."""
        records = [json.loads(name) for name in self.world.kafka.visible if name.startswith("{")]
        return {int(record["inputs"][0]["value"]) for record in records}

    def check_step(self, step: str, first: int, outputs: set[str]) -> None:
        """Its outputs, or its error record, or nothing if the function returns nothing."""
        world = self.world
        visible = {name for name in outputs if name in world.kafka.visible}
        strategy = world.processor.strategy
        if strategy is Strategy.AT_MOST_ONCE:
            if world.calls.get(first, 0) > 1:
                raise Violation(f"at-most-once has run step {step} {world.calls[first]} times")
            return
        if first in world.empty and not world.deaths.get(first):
            if visible:
                raise Violation(f"step {step} returned nothing, and has the outputs {visible}")
            return
        if len(visible) == len(outputs):
            return
        if strategy is Strategy.EXACTLY_ONCE and visible:
            raise Violation(f"step {step} has only the outputs {visible}")
        if first not in self.errors:
            raise Violation(f"step {step} has neither outputs nor an error record")


def run(seed: int, changes: Callable[[], AbstractContextManager[None]] = nullcontext) -> Outcome:
    outcome: Outcome = run_seed("graphs", seed, _prepared(seed, changes))
    return outcome


@contextmanager
def _prepared(seed: int, changes: Callable[[], AbstractContextManager[None]]) -> Iterator[Scenario]:
    with sized(), changes():
        yield Scenario(seed)
