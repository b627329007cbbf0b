"""One simulated process that runs a processor, what its function does, and what may befall it."""

from __future__ import annotations

from typing import Any

from outbox.core.graphs.outputs import OutputMaker
from outbox.core.graphs.pairs import different_keys
from outbox.core.graphs.steps import Step
from outbox.core.graphs.values import ProcessorKind
from outbox.graphs.lane_worker import LaneOptions
from outbox.graphs.processing import Processing
from tests.simulation.checkers import Violation
from tests.simulation.exactly_once.broker import TRANSACTION_TIMEOUT_S
from tests.simulation.graphs.kafka import LaneKafka, Member
from tests.simulation.runtime import Simulated


class FunctionFailed(Exception):
    pass


class Process:
    """Also what its threads connect with, and its functions."""

    def __init__(self, world: Any, name: str) -> None:
        self.world, self.name = world, name
        self.runtime = Simulated(world, origin=world.random.uniform(0.0, 1e6), switching=world.switching)
        self.runtime.passed = self.passed
        self.clients: dict[Any, None] = {}
        self.placed: dict[int, int] = {}
        """How often each lane was taken over."""
        self.kafka_ok, self.is_closed, self.is_leaving, self.holds_lease = True, False, False, True
        self.processing = Processing(
            world.processor,
            LaneOptions("graph", TRANSACTION_TIMEOUT_S, 1.0, 10_000),
            OutputMaker(world.processor, provenance=False, bytes_max=10_000),
            self,
            self,
            self.runtime.lock("careful turn"),
            fail=self._fail,
            runtime=self.runtime,
        )
        world.processes.append(self)
        self.processing.start()

    def kafka(self) -> LaneKafka:
        return LaneKafka(self)

    def group(self) -> Member:
        return Member(self)

    # ---- the functions

    def mismatch(self, step: Step) -> bool:
        return len(step) > 1 and different_keys(step)

    def call(self, step: Step, step_hash: str, attempt: int) -> Any:
        world = self.world
        uids = [int(message.value or b"") for message in step]
        self._remember(step)
        if world.chance(world.faults.slow):
            self.runtime.sleep(world.random.choice((0.01, 0.1, 0.3)))
        if uids[0] in world.crashing:
            world.deaths[uids[0]] = world.deaths.get(uids[0], 0) + 1
            self.crash()
            self.runtime.sleep(0.0)
        world.calls[uids[0]] = world.calls.get(uids[0], 0) + 1
        if world.failing.get(uids[0], 0) > 0:
            world.failing[uids[0]] -= 1
            raise FunctionFailed(f"message {uids[0]}")
        if uids[0] in world.empty:
            return None
        name = "+".join(map(str, uids))
        return {"a": f"{name}:a", "b": f"{name}:b"} if len(world.processor.outputs) > 1 else f"{name}:a"

    def _remember(self, step: Step) -> None:
        """The first step of an attempt is that of the attempt before."""
        world, number = self.world, step[0].partition
        if world.processor.kind is not ProcessorKind.ALTS:
            return
        at = tuple(sorted(world.kafka.committed[number].items()))
        attempt = self.name, self.placed[number]
        first, by = world.firsts.setdefault((number, at), ((step[0].topic, step[0].offset), attempt))
        is_first = (number, at, attempt) not in world.attempts
        if is_first and (step[0].topic, step[0].offset) != first:
            text = f"{self.name} begins with {step[0].topic} {step[0].offset}, {by[0]} began with {first}"
            world.fail(Violation(text))
        world.attempts[number, at, attempt] = None

    # ---- life and faults

    @property
    def is_alive(self) -> bool:
        return self.runtime.is_alive

    @property
    def is_paused(self) -> bool:
        return self.runtime.is_paused

    def passed(self, name: str) -> None:
        if self.world.chance(self.world.faults.point) and self.is_alive:
            self.world.struck(self, name)
            self.runtime.sleep(0.0)

    def _fail(self, error: BaseException) -> None:
        if not self.runtime.is_over and self.is_alive:
            self.world.fail(error)

    def stop(self) -> None:
        self.is_leaving = True
        self.processing.stop()

    def crash(self) -> None:
        if self.is_alive:
            self.runtime.kill()
            self.is_closed = True
            for client in list(self.clients):
                client.end()
            self.world.after(0.3, self.world.replace)

    def pause(self) -> None:
        self.runtime.pause()

    def resume(self) -> None:
        self.runtime.resume()
