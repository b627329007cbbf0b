"""One simulated harvester: the product's election, lanes, reader and purges, on simulated threads and servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from greenlet import getcurrent

from outbox.core import neli as election
from outbox.edges.ways import OtherWay
from outbox.harvest.exactly_once import ExactlyOnce, ExactlyOnceFactory
from outbox.harvest.lanes import STOPPED
from outbox.harvest.ports import Servers
from tests.simulation.exactly_once.database import Connection, Database
from tests.simulation.exactly_once.kafka import Client, Kafka
from tests.simulation.member import Member
from tests.simulation.runtime import Simulated


class Host:
    """What one worker knows of its process: a `LaneHost`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.worker: ExactlyOnce | None = None
        self.is_detached = False

    def may_start(self, lane: int) -> bool:
        return not self.is_detached and self._process.neli.may_start(lane, self._process.clock)

    def may_send(self, lane: int) -> bool:
        return not self.is_detached and self._process.neli.may_send(lane, self._process.clock)

    def lanes_owned(self) -> int:
        return max(1, len(self._process.lanes))

    def refresh(self, lane: int) -> None:
        pass

    def doubt(self, lane: int) -> None:
        if not self.is_detached:
            self._process.post("doubt", lane)

    def step_down(self, lane: int) -> None:
        pass

    def partitions_added(self) -> None:
        pass

    def finished(self, lane: int) -> None:
        if not self.is_detached:
            self._process.finished(self, lane)

    def emit(self, event: object) -> None:
        pass

    @property
    def stopped_for(self) -> str:
        """Why the lane waits for an operator; empty: it does not."""
        worker = self.worker
        return worker._machine.stopped_for if worker is not None and worker._machine.phase == STOPPED else ""

    def fatal(self, error: BaseException) -> None:
        self._process.fatal(error)


class Process(Member):
    watch: Callable[[Simulated], Any] = staticmethod(lambda runtime: runtime)
    """What the product is given as its runtime."""

    def __init__(self, world: Any, name: str, cores: Any) -> None:
        self.lanes: dict[int, Host] = {}
        self.clients: dict[Client, None] = {}
        self.connections: dict[Connection, None] = {}
        self.is_claimed = False
        super().__init__(world, name, cores)
        self.origin = abs(self.origin)  # no monotonic clock is below zero
        self.runtime = Simulated(world, origin=self.origin, switching=world.switching, switched_s=world.switched_s)
        self.runtime.passed, self.runtime.switched = self.point, world.late
        runtime = self.watch(self.runtime)
        self._factory = ExactlyOnceFactory(
            owner=name,
            runtime=runtime,
            connect=lambda conf: Servers(runtime, Database(self), Kafka(self)),
        )

    # ---- life and faults

    def crash(self) -> None:
        super().crash()
        self.runtime.kill()
        for client in list(self.clients):
            client.end()
        for connection in list(self.connections):
            connection.close()

    def pause(self) -> None:
        super().pause()
        self.runtime.pause()

    def resume(self) -> None:
        super().resume()
        self.runtime.resume()

    def cut(self) -> None:
        self.kafka_ok = False
        for client in self.clients:
            client.cut()

    def point(self, name: str) -> None:
        """Here a fault may strike: before a statement and a call of a client, and at the failpoints."""
        world = self.world
        if not world.chance(world.faults.point) or getattr(getcurrent(), "runtime", None) is not self.runtime:
            return
        world.note(self.name, "struck", name)
        world.struck(self, name)
        self.runtime.sleep(0.0)  # from which it does not come back when it is dead

    def perhaps_evicted(self) -> None:
        """It stands still for so long that others take its lanes over."""
        world = self.world
        if world.chance(world.faults.evicted) and not self.paused and world.group.others(self.name):
            world.group.leave(self.name)
            self.pause()
            world.after(world.random.uniform(0.2, 2.0), self.resume)
            world.evicted()
            self.runtime.sleep(0.0)

    def fatal(self, error: BaseException) -> None:
        if isinstance(error, OtherWay):
            self.world.after(0.0, self.crash)  # as the program ends then
        else:
            self.world.fail(error)

    # ---- what the election wants

    def lead(self, effect: election.LeaderAcquired) -> None:
        self.abandon(effect.lane)
        host = self.lanes[effect.lane] = Host(self)
        host.worker = self._factory(self.world.conf, effect.lane, effect.leader_id, 0, host)
        host.worker.start()

    def finish(self, effect: election.FinishBatch) -> None:
        host = self.lanes.get(effect.lane)
        if host is None:
            self.post("released", effect.lane)
        else:
            assert host.worker is not None
            host.worker.finish(effect.deadline - 0.1)

    def abandon(self, lane: int) -> None:
        if (host := self.lanes.pop(lane, None)) is not None:
            host.is_detached = True
            assert host.worker is not None
            host.worker.abandon()

    def finished(self, host: Host, lane: int) -> None:
        if self.lanes.get(lane) is host:
            del self.lanes[lane]
            self.post("released", lane)

    def _on_released(self, lane: int, now: float) -> None:
        self._elect(self.neli.released(lane, now))
        self._answer_revokes()

    def _on_doubt(self, lane: int, now: float) -> None:
        self._elect(self.neli.doubt(lane, now))
