"""Scenarios of relays: from one seed, what is posted and which faults strike when.

The relays are the product: three threads each, and all that they decide. Threads, clock, PostgreSQL and receivers are
simulated below them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import Any
from unittest.mock import patch

from outbox.core.relay import charging, circuit
from outbox.core.relay.destination import DestinationOptions
from outbox.core.relay.schedule import fixed
from outbox.core.relay.turns import Delivery
from outbox.relay import worker
from tests.simulation import world as surroundings
from tests.simulation.checkers import Violation
from tests.simulation.relay import receivers
from tests.simulation.relay.checkers import check_end
from tests.simulation.relay.process import Process
from tests.simulation.relay.receivers import Attempt, Receiver, require_once
from tests.simulation.relay.table import Rules, Table
from tests.simulation.seeded import run_seed

FAULTS_S = 10.0
DRAIN_S = 200.0
RELAYS_MAX = 4
LEASE_S, DEADLINE_S = 4.0, 1.0
THEMES = 4
OUTAGES, ORDERED, DYING, RANDOM = range(THEMES)
"""Themes, by seed % THEMES: receivers that are unavailable; ordered keys; deliveries that can never succeed, some of
which end the relay; receivers that fail at random."""


@dataclass
class Faults:
    """Probabilities per statement; all zero once the faults stop."""

    cut: float = 0.0
    slow: float = 0.0

    def calm(self) -> None:
        for fault in fields(self):
            setattr(self, fault.name, 0.0)


@contextmanager
def sized() -> Iterator[None]:
    """Constants of the product that belong to waits of another length."""
    with ExitStack() as stack:
        for owner, name, value in (
            (charging, "WINDOW_S", 2.0),
            (circuit, "PAUSE_MIN_S", 0.1),
            (circuit, "PAUSE_MAX_S", 2.0),
            (worker, "POLL_MIN_S", 0.02),
            (worker, "EXPIRE_S", 0.3),
            (worker, "OUTAGE_S", (0.05, 0.5)),
        ):
            stack.enter_context(patch.object(owner, name, value))
        yield


class World(surroundings.World):
    faults: Faults

    def __init__(self, seed: int, rules: Rules | None = None) -> None:
        super().__init__(seed, lanes=1, cooperative=True)
        self.seed, self.theme, self.faults = seed, seed % THEMES, Faults()
        self.switching = self.random.choice((0.0, 0.0, 0.01, 0.05))
        self.lease_s = LEASE_S
        self.tasks: list[Any] = []
        self.table = Table(self, rules)
        names = [f"d{number}" for number in range(self.random.choice((1, 2, 3)))]
        self.options = {name: self._options(name) for name in names}
        self.receivers = {name: Receiver(self, name) for name in names}
        self.attempts: list[Attempt] = []
        """Under way."""
        self.posted: dict[int, str] = {}
        """Deliveries → key."""
        self.rejected: dict[int, None] = {}
        self.failing: dict[int, None] = {}
        self.crashing: dict[int, None] = {}
        self.met: dict[int, set[int]] = {}
        """Deliveries → the outages that an attempt met."""
        self.replace: Callable[[], None] = lambda: None

    def _options(self, name: str) -> DestinationOptions:
        return DestinationOptions(
            name,
            concurrency=self.random.choice((1, 4, 16)),
            rate=self.random.choice((None, None, 40.0)),
            deadline_s=DEADLINE_S,
            lease_s=LEASE_S,
            schedule=fixed(60 if self.theme in (RANDOM, ORDERED) else 3, 0.3),
            dead_blocks_key=self.random.random() < 0.5,
        )

    def is_blocked(self, id_: int) -> bool:
        """A dead delivery of its key is before it."""
        row = self.table.rows[id_]
        return bool(row.key) and any(
            one.blocks_key and one.key == row.key and one.destination == row.destination and one.id < id_
            for one in self.table.rows.values()
        )

    def check_attempt(self, process: Process, delivery: Delivery) -> None:
        require_once(self, process, delivery)
        self._require_one_probe(delivery.destination)
        if process.probes(delivery.destination) > 1:
            raise Violation(f"{process.name} sends several deliveries as one probe of {delivery.destination}")
        self.note("sent", process.name, delivery.id)

    def _require_one_probe(self, name: str) -> None:
        """Of relays that know of no end of their lease."""
        row = self.table.destinations.get(name)
        probing = [one for one in self.processes if one.is_alive and not one.pauses and one.has_probe(name, row)]
        if len(probing) > 1:
            raise Violation(f"{' and '.join(one.name for one in probing)} have the probe of {name}")

    def fail(self, error: BaseException) -> None:
        """Something that no thread may survive: raised where it ends the scenario."""

        def end() -> None:
            raise Violation(f"a thread has ended: {error!r}") from error

        self.after(0.0, end)


@dataclass(frozen=True)
class Outcome:
    trace: int
    accepted: int
    seconds: float


class Scenario:
    def __init__(self, seed: int, rules: Rules | None = None) -> None:
        self.world = World(seed, rules)
        self.random = self.world.random
        self.names = list(self.world.receivers)
        self.keys = [f"k{number}" for number in range(self.random.choice((1, 3, 8)))]
        self.is_posting = True
        self.born = 0
        self.world.replace = self.replace

    def run(self) -> Outcome:
        world = self.world
        for _ in range(self.random.choice((0, 5, 60))):
            self.post_one()
        for _ in range(self.random.choice((1, 2, 4))):
            self.spawn()
        self.post()
        world.after(self.random.uniform(0.2, 1.0), self.strike)
        world.run_until(world.now + FAULTS_S)
        self.settle()
        begun = world.now
        world.run_until(world.now + DRAIN_S, self.is_drained)
        check_end(world)
        accepted = sum(len(receiver.accepted) for receiver in world.receivers.values())
        return Outcome(world.trace, accepted, world.now - begun)

    def is_drained(self) -> bool:
        rows = self.world.table.rows
        return all(row.reason or self.world.is_blocked(row.id) for row in rows.values())

    def settle(self) -> None:
        """No more faults; a few last messages."""
        self.is_posting = False
        self.world.faults.calm()
        self.world.table.is_up = True
        for receiver in self.world.receivers.values():
            receiver.state = receivers.UP
        for process in self.world.processes:
            if process.runtime.is_paused:
                process.resume()
        self.replace()

    # ---- who posts

    def post(self) -> None:
        if self.is_posting:
            for _ in range(self.random.choice((1, 1, 6))):
                self.post_one()
            self.world.after(self.random.expovariate(12.0), self.post)

    def post_one(self) -> None:
        world = self.world
        is_ordered = self.random.random() < (0.9 if world.theme == ORDERED else 0.2)
        key = self.random.choice(self.keys) if is_ordered else ""
        id_ = world.table.post(self.random.choice(self.names), key, self.random.choice((0.0, 0.0, 0.0, 1.0)))
        world.posted[id_] = key
        draw = self.random.random()
        if world.theme == DYING and draw < 0.05:
            world.rejected[id_] = None
        elif world.theme == DYING and draw > 0.95 and len(world.failing) < 3:
            world.failing[id_] = None
        elif world.theme == DYING and 0.5 < draw < 0.51 and not world.crashing:
            world.crashing[id_] = None

    # ---- faults

    def living(self) -> list[Process]:
        return [one for one in self.world.processes if one.is_alive and not one.is_leaving]

    def spawn(self) -> None:
        self.born += 1
        Process(self.world, f"r{self.born}")

    def replace(self) -> None:
        if not self.living():
            self.spawn()

    def strike(self) -> None:
        if not self.is_posting:
            return
        self.weather()
        faults = ["crash", "pause", "pause", "stop", "join", "restart"]
        if self.world.theme == OUTAGES:
            faults += ["outage"] * 12
        elif self.world.theme != DYING:
            faults += ["outage", "flaky", "flaky", "flaky"]
        getattr(self, self.random.choice(faults))()
        self.replace()
        self.world.after(self.random.uniform(0.1, 1.0), self.strike)

    def weather(self) -> None:
        calm = self.random.random() < 0.5
        self.world.faults = Faults() if calm else Faults(cut=0.03, slow=0.05)

    def crash(self) -> None:
        if living := self.living():
            self.random.choice(living).crash()

    def pause(self) -> None:
        if living := [one for one in self.living() if not one.runtime.is_paused]:
            process = self.random.choice(living)
            process.pause()
            self.world.after(self.random.choice((0.3, 1.0, 3.0, 5.0, 9.0)), process.resume)

    def stop(self) -> None:
        if living := self.living():
            self.random.choice(living).stop()

    def join(self) -> None:
        if len(self.living()) < RELAYS_MAX:
            self.spawn()

    def restart(self) -> None:
        """Of PostgreSQL."""
        table = self.world.table
        table.is_up = False

        def up() -> None:
            table.is_up = True

        self.world.after(self.random.choice((0.1, 1.0, 3.0)), up)

    def outage(self) -> None:
        self._change(self.random.choice((receivers.REFUSES, receivers.HANGS, receivers.BUSY)))

    def flaky(self) -> None:
        self._change(receivers.FLAKY)

    def _change(self, state: str) -> None:
        receiver = self.world.receivers[self.random.choice(self.names)]
        receiver.state = state
        receiver.outages += 1

        def end() -> None:
            if receiver.state == state:
                receiver.state = receivers.UP

        self.world.after(self.random.choice((0.3, 2.0, 5.0)), end)


def run(
    seed: int, planted: Callable[[], AbstractContextManager[None]] = nullcontext, rules: Rules | None = None
) -> Outcome:
    """`planted`: in the product; `rules`: what the table does not compare."""
    outcome: Outcome = run_seed("relay", seed, _prepared(seed, planted, rules))
    return outcome


@contextmanager
def _prepared(
    seed: int, planted: Callable[[], AbstractContextManager[None]], rules: Rules | None
) -> Iterator[Scenario]:
    with sized(), planted():
        yield Scenario(seed, rules)
