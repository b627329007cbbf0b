"""One simulated harvester of at-least-once delivery, and what the checkers learn of it."""

from __future__ import annotations

from functools import partial
from typing import Any

from outbox.core.contract import WorkerFactory
from outbox.harvest.at_least_once.lane import AtLeastOnceFactory
from outbox.harvest.at_least_once.ports import MarkServers
from tests.simulation.at_least_once.database import Connection, Database
from tests.simulation.at_least_once.kafka import Client, Message
from tests.simulation.harvester import Harvester


class Process(Harvester):
    def __init__(self, world: Any, name: str) -> None:
        self.clients: dict[Client, None] = {}
        self.connections: dict[Connection, None] = {}
        super().__init__(world, name, world.conf)

    def factory(self) -> WorkerFactory:
        return AtLeastOnceFactory(
            owner=self.name,
            runtime=self.runtime,
            connect=lambda conf: MarkServers(self.runtime, Database(self), partial(Client, self)),
        )

    def handed(self, lane: int, message: Message) -> None:
        """A record is handed to a client of this lane, which has others undecided."""
        others = {m.id: m for client in self.clients if client.lane == lane for m in client.undecided}
        trusted, silent_s = self.member.may_send(lane), self.world.now - self.beat_at[lane]
        if lane in self.member._neli.revoking:
            silent_s -= self.conf.election.revoke_timeout_s  # for so long the group waits for it
        self.world.checkers.handed(self.name, others, message, trusted=trusted, silent_s=silent_s)

    # ---- life and faults

    def crash(self) -> None:
        if self.alive:
            super().crash()
            for client in self.clients:
                client.crash()
            for connection in list(self.connections):
                connection.close()

    def pause(self) -> None:
        super().pause()
        self.world.checkers.pauses[self.name] = self.world.checkers.pauses.get(self.name, 0) + 1
        for client in self.clients:
            client.pause()

    def resume(self) -> None:
        super().resume()
        if self.alive:
            for client in self.clients:
                client.resume()
