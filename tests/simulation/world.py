"""The simulated surroundings: time and the group. They obey; faults are chosen by the scenario."""

from __future__ import annotations

import heapq
import random
import zlib
from collections.abc import Callable
from typing import Any
from uuid import UUID

from tests.simulation.group import Group


class World:
    """Virtual time and everything that processes share."""

    def __init__(self, seed: int, *, lanes: int, cooperative: bool) -> None:
        self.random = random.Random(seed)
        self.now = 100.0
        self.lanes = lanes
        self.faults: Any = None
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = self._pids = 0
        self.group = Group(self, cooperative=cooperative)
        self.processes: list[Any] = []
        self.trace = 0

    def new_id(self) -> UUID:
        return UUID(int=self.random.getrandbits(128), version=4)

    def new_pid(self) -> int:
        """Of a backend of the simulated database."""
        self._pids += 1
        return self._pids

    def lane_of(self, key: str) -> int:
        """A number, to be divided by the count of lanes."""
        return zlib.crc32(key.encode())

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability

    def latency(self) -> float:
        return self.random.uniform(0.001, 0.012)

    def after(self, delay: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self.events, (self.now + delay, self._count, action))

    def note(self, *what: object) -> None:
        """Feeds the trace hash: two runs of one seed must agree in it."""
        self.trace = zlib.crc32(f"{self.now:.9f} {what}".encode(), self.trace)

    def run_until(self, end: float, done: Callable[[], bool] | None = None) -> None:
        for _ in range(3_000_000):
            if not self.events or self.events[0][0] > end or (done is not None and done()):
                break
            self.now, _, action = heapq.heappop(self.events)
            action()
        else:
            raise AssertionError("the simulation did not come to its end: somebody spins")
