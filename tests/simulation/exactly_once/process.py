"""One simulated harvester of the exactly-once way: the real election, and the lanes that it owns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outbox.core import neli as election
from tests.simulation.exactly_once.client import Client
from tests.simulation.exactly_once.lane import Lane
from tests.simulation.exactly_once.rounds import Rounds
from tests.simulation.exactly_once.tasks import Steps
from tests.simulation.member import Member


class Process(Member):
    def __init__(self, world: Any, name: str, cores: Any) -> None:
        self.lanes: dict[int, Lane] = {}
        self.frozen: list[Callable[[], None]] = []
        self.clients: dict[Client, None] = {}
        super().__init__(world, name, cores)
        self.rounds: Rounds = cores.rounds(self)

    # ---- life and faults

    def crash(self) -> None:
        super().crash()
        for client in list(self.clients):
            client.drop()

    def resume(self) -> None:
        super().resume()
        frozen, self.frozen = self.frozen, []
        for action in frozen:
            self.world.after(self.world.random.choice((0.0, 0.002, 0.05)), action)

    def cut(self) -> None:
        self.kafka_ok = False
        for client in self.clients:
            client.cut()

    def point(self, name: str) -> Steps:
        """Here a fault may strike, as a failpoint of production does."""
        world = self.world
        if not world.chance(world.faults.point):
            return
        world.note(self.name, "struck", name)
        world.struck(self, name)
        yield 0.0

    # ---- what the election wants

    def lead(self, effect: election.LeaderAcquired) -> None:
        self.abandon(effect.lane)
        self.lanes[effect.lane] = Lane(self, effect.lane, effect.leader_id)

    def finish(self, effect: election.FinishBatch) -> None:
        lane = self.lanes.get(effect.lane)
        if lane is None:
            self.post("released", effect.lane)
        else:
            lane.finish(self.world.now + effect.deadline - self.clock - 0.1)

    def abandon(self, lane: int) -> None:
        if (worker := self.lanes.pop(lane, None)) is not None:
            worker.abandon()

    def finished(self, lane: Lane) -> None:
        if self.lanes.get(lane.number) is lane:
            del self.lanes[lane.number]
            self.post("released", lane.number)

    def _on_released(self, lane: int, now: float) -> None:
        self._elect(self.neli.released(lane, now))
        self._answer_revokes()

    def _on_doubt(self, lane: int, now: float) -> None:
        self._elect(self.neli.doubt(lane, now))
