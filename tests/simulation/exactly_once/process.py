"""One simulated harvester of exactly-once delivery, and its faults."""

from __future__ import annotations

from typing import Any

from outbox.core.contract import STOPPED, WorkerFactory
from outbox.edges.postgres.common.leases import OtherMode
from outbox.harvest.exactly_once.lane import ExactlyOnce, ExactlyOnceFactory
from outbox.harvest.exactly_once.ports import Servers
from tests.simulation.exactly_once.database import Connection, Database
from tests.simulation.exactly_once.kafka import Client, Kafka
from tests.simulation.harvester import Harvester


class Process(Harvester):
    def __init__(self, world: Any, name: str) -> None:
        self.clients: dict[Client, None] = {}
        self.connections: dict[Connection, None] = {}
        self.holds_lease = False
        super().__init__(world, name, world.conf)

    def factory(self) -> WorkerFactory:
        return ExactlyOnceFactory(
            owner=self.name,
            runtime=self.given,
            connect=lambda conf: Servers(self.given, Database(self), Kafka(self)),
        )

    def stopped_for(self) -> list[str]:
        """Why lanes wait for an operator."""
        workers = [host.worker for host in self.owned._hosts.values()]
        machines = [worker._machine for worker in workers if isinstance(worker, ExactlyOnce)]
        return [machine.stopped_for for machine in machines if machine.phase == STOPPED]

    # ---- life and faults

    def fail(self, error: BaseException) -> None:
        if isinstance(error, OtherMode):
            self.world.after(0.0, self.crash)  # as the program ends then
        else:
            super().fail(error)

    def crash(self) -> None:
        if self.alive:
            super().crash()
            for client in list(self.clients):
                client.end()
            for connection in list(self.connections):
                connection.close()

    def cut(self) -> None:
        self.kafka_ok = False
        for client in self.clients:
            client.cut()

    def perhaps_evicted(self) -> None:
        """It stops for so long that others take its lanes over."""
        world = self.world
        if world.chance(world.faults.evicted) and not self.paused and world.group.others(self.name):
            world.group.leave(self.name)
            self.pause()
            world.after(world.random.uniform(0.2, 2.0), self.resume)
            world.evicted()
            self.runtime.sleep(0.0)
