"""One simulated harvester: the product's member of the election and its lanes, on simulated threads and clients."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent

from outbox.conf import Conf
from outbox.core.contract import WorkerFactory
from outbox.election.member import Member
from outbox.harvest.harvester import JOIN_TIMEOUT_S, LEAVE_TIMEOUT_S
from outbox.harvest.metrics import Measurements
from outbox.harvest.owned_lanes import OwnedLanes
from outbox.service.receivers import Events
from tests.simulation.leader_topic import Clients
from tests.simulation.runtime import SWITCHED_S, Simulated

logger = logging.getLogger("outbox.harvest")


class Harvester:
    """`factory` makes its workers; subclasses know their servers. What `harvest.harvester` prepares is there
    already."""

    watch: Callable[[Simulated], Any] = staticmethod(lambda runtime: runtime)
    """What the product is given as its runtime."""

    def __init__(self, world: Any, name: str, conf: Conf) -> None:
        self.world, self.name, self.conf = world, name, conf
        self.alive, self.paused, self.leaving = True, False, False
        self.kafka_ok = self.table_ok = True
        self.ignorant_until, self.is_evicted = 0.0, False  # and its client does not know (seen with librdkafka)
        self.beat_at: dict[int, float] = {}  # when the broker took the last own beat
        origin = world.random.uniform(0, 1e6)  # monotonic clocks of two hosts have nothing in common
        switched_s = getattr(world, "switched_s", SWITCHED_S)
        self.runtime = Simulated(world, origin=origin, switching=world.switching, switched_s=switched_s)
        self.runtime.steady = getattr(world, "steady", "")
        self.runtime.passed, self.runtime.switched = self.point, getattr(world, "late", lambda seconds: None)
        self.given = self.watch(self.runtime)
        self._stopping = self.given.event()
        self._events = Events(Harvester, self, logger, self.given)
        self.owned = OwnedLanes(
            conf,
            self.factory(),
            self._events,
            Measurements(),
            self.fail,
            self.unclean_release,
            name=name,
            logger=logger,
            runtime=self.given,
        )
        self.member = Member(
            conf,
            self.owned.hear,
            self.fail,
            clients=Clients(self),
            partitions=len(world.group.partitions),
            name=name,
            new_id=world.new_id,
            runtime=self.given,
        )
        self.owned.follow(self.member)
        world.processes.append(self)
        self._events.start()
        self.member.start()
        self.given.thread(self._supervise, "outbox-harvester").start()

    def factory(self) -> WorkerFactory:
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        self.world.fail(error)

    def unclean_release(self, reason: str) -> None:
        pass

    def _supervise(self) -> None:
        """As `harvest.harvester` does, from a stop on."""
        self._stopping.wait()
        self.member.stop()
        self.member.join(self.conf.election.revoke_timeout_s + LEAVE_TIMEOUT_S)
        self.owned.join_workers(JOIN_TIMEOUT_S)
        self._events.close(LEAVE_TIMEOUT_S)
        self.crash()  # the process has ended

    # ---- life and faults

    def crash(self) -> None:
        self.alive = False
        self.runtime.kill()

    def pause(self) -> None:
        self.paused = True
        self.runtime.pause()

    def resume(self) -> None:
        self.paused = False
        self.runtime.resume()

    def reconnect(self) -> None:
        self.kafka_ok = self.table_ok = True

    def stop(self) -> None:
        if self.alive and not self.leaving:
            self.leaving = True
            self._stopping.set()

    def point(self, name: str) -> None:
        """Here a fault may strike: before a statement and a call of a client, and at the failpoints."""
        world = self.world
        if not world.chance(world.faults.point) or getattr(getcurrent(), "runtime", None) is not self.runtime:
            return
        world.note(self.name, "struck", name)
        world.struck(self, name)
        self.runtime.sleep(0.0)  # from which it does not come back when it is dead
