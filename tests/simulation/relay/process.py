"""One simulated relay."""

from __future__ import annotations

from typing import Any

from outbox.core.relay.load import RelayLoad
from outbox.relay.worker import RelayWorker
from tests.simulation.relay.receivers import SimulatedSender
from tests.simulation.relay.table import SimulatedDeliveries
from tests.simulation.runtime import Simulated


class Process:
    """Also what its threads connect with."""

    def __init__(self, world: Any, name: str) -> None:
        self.world, self.name = world, name
        self.runtime = Simulated(world, origin=world.random.uniform(0.0, 1e6), switching=world.switching)
        self.skew_s = world.random.choice((-5.0, 0.0, 5.0, 3_600.0))
        """Of its clock. No statement may use it."""
        self.is_leaving, self.pauses = False, 0
        self.load = RelayLoad(lambda name: world.options[name])
        self.client = SimulatedSender(self)
        self.worker = RelayWorker(
            self.load,
            self,
            lease_s=world.lease_s,
            fail=self._fail,
            grace_s=2.0,
            runtime=self.runtime,
            new_token=lambda: str(world.new_id()),
        )
        world.processes.append(self)
        self.worker.start()

    def deliveries(self) -> SimulatedDeliveries:
        return SimulatedDeliveries(self, self.world.table)

    def sender(self) -> SimulatedSender:
        return self.client

    @property
    def is_alive(self) -> bool:
        return self.runtime.is_alive

    def has_probe(self, name: str, row: Any) -> bool:
        """Of the version that the table has."""
        known = self.load.destinations.get(name)
        return known is not None and known._has_probe and row is not None and known.row.version == row.version

    def probes(self, name: str) -> int:
        """Under way, of the probe that it has."""
        known = self.load.destinations[name]
        return sum(one.is_probe for one in known._under_way.values()) if known._has_probe else 0

    def _fail(self, error: BaseException) -> None:
        if not self.runtime.is_over and self.is_alive:
            self.world.fail(error)

    def stop(self) -> None:
        """As a signal does: the main thread tells the others."""
        self.is_leaving = True
        self.runtime.thread(self.worker.stop, "main").start()

    def crash(self) -> None:
        if self.is_alive:
            self.runtime.kill()
            self.world.after(0.3, self.world.replace)

    def pause(self) -> None:
        self.pauses += 1
        self.runtime.pause()

    def resume(self) -> None:
        self.runtime.resume()
