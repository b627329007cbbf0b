"""Simulated receivers, and the HTTP client of a simulated relay."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from outbox.core.relay.results import Answered, AttemptResult, Transport
from outbox.core.relay.turns import Delivery
from tests.simulation.checkers import Violation
from tests.simulation.runtime import Waiters

UP, REFUSES, HANGS, BUSY, FLAKY = "up", "refuses", "hangs", "busy", "flaky"
OK, ERROR, REJECTED, UNAVAILABLE = 200, 500, 404, 503


@dataclass
class Receiver:
    """One destination."""

    world: Any
    name: str
    state: str = UP
    outages: int = 0
    accepted: list[int] = field(default_factory=list)
    """Deliveries in the order in which they were accepted, with repeats."""

    def met(self, delivery: Delivery) -> None:
        self.world.met.setdefault(delivery.id, set()).add(self.outages)

    def receive(self, delivery: Delivery) -> AttemptResult | None:
        """None: no answer ever comes."""
        world = self.world
        if self.state in (HANGS, BUSY):
            self.met(delivery)
        if self.state == HANGS:
            if world.chance(0.3):
                self.accepted.append(delivery.id)
            return None
        if self.state == BUSY:
            return AttemptResult(UNAVAILABLE, retry_after_s=1.0 if world.chance(0.5) else None)
        if delivery.id in world.rejected:
            return AttemptResult(REJECTED)
        if delivery.id in world.failing:
            return AttemptResult(ERROR)
        if self.state == FLAKY and world.chance(0.3):
            if world.chance(0.5):
                self.accepted.append(delivery.id)
                return AttemptResult(transport=Transport.BROKEN)
            return AttemptResult(ERROR)
        self.accepted.append(delivery.id)
        return AttemptResult(OK)


@dataclass(frozen=True)
class Attempt:
    process: Any
    delivery: Delivery
    was_paused: int
    """How often the process had been paused before."""


class SimulatedSender:
    """Of one process."""

    def __init__(self, process: Any) -> None:
        self._process, self._world, self._runtime = process, process.world, process.runtime
        self._ended: list[Answered] = []
        self._waiters = Waiters()
        self._is_woken = self._is_abandoned = False

    def start(self, delivery: Delivery, deadline_s: float) -> None:
        world = self._world
        world.check_attempt(self._process, delivery)
        attempt = Attempt(self._process, delivery, self._process.pauses)
        world.attempts.append(attempt)
        receiver = world.receivers[delivery.destination]
        if delivery.id in world.crashing:
            world.after(0.0, self._process.crash)
            return
        if receiver.state == REFUSES:
            receiver.met(delivery)
            result = AttemptResult(transport=Transport.CONNECT)
            world.after(world.latency(), lambda: self._end(attempt, result))
            return
        world.after(deadline_s, lambda: self._end(attempt, AttemptResult(transport=Transport.TIMEOUT)))
        world.after(world.random.uniform(0.001, 0.05), lambda: self._arrive(attempt, receiver))

    def _arrive(self, attempt: Attempt, receiver: Receiver) -> None:
        if (result := receiver.receive(attempt.delivery)) is not None:
            self._world.after(self._world.latency(), lambda: self._end(attempt, result))

    def _end(self, attempt: Attempt, result: AttemptResult) -> None:
        if attempt in self._world.attempts:
            self._world.attempts.remove(attempt)
            if not self._is_abandoned:
                self._ended.append(Answered(attempt.delivery, result))
                self._runtime.wake(self._waiters)

    def wait(self, timeout_s: float) -> list[Answered]:
        if not self._ended and not self._is_woken:
            self._runtime.wait(timeout_s, self._waiters)
        self._is_woken = False
        ended, self._ended = self._ended, []
        return ended

    def wake(self) -> None:
        self._is_woken = True
        self._runtime.wake(self._waiters)

    def abandon(self) -> None:
        self._is_abandoned = True
        self._world.attempts[:] = [one for one in self._world.attempts if one.process is not self._process]


def require_once(world: Any, process: Any, delivery: Delivery) -> None:
    """A relay whose lease holds has its delivery for itself. One that was paused may have lost it."""
    for one in world.attempts:
        if one.delivery.id != delivery.id or one.process is process:
            continue
        if one.process.is_alive and one.was_paused == one.process.pauses and not one.process.runtime.is_paused:
            raise Violation(f"{process.name} sends delivery {delivery.id}, which {one.process.name} is sending")
