"""One simulated member of the group: the real election, and what happens to a process. What its lanes do is told by
subclasses."""

from __future__ import annotations

from collections import deque
from typing import Any

from outbox.core import neli as election
from outbox.core.neli import Neli
from tests.simulation.group import SESSION_TIMEOUT_S
from tests.simulation.world import World


class Member:
    def __init__(self, world: World, name: str, cores: Any) -> None:
        self.world, self.name, self.cores = world, name, cores
        self.alive, self.paused, self.kafka_ok, self.table_ok = True, False, True, True
        self.ignorant_until = 0.0  # evicted, and its client does not know (seen with librdkafka)
        self.inbox: deque[tuple[Any, ...]] = deque()
        self.positions: dict[int, int] = {}
        self.revokes: list[int] = []
        self.origin = world.random.uniform(-1e6, 1e6)  # monotonic clocks of two hosts have nothing in common
        self.beat_at: dict[int, float] = {}  # when the broker took the last own beat
        self.harvest_first = False
        self.contact = world.now
        self.joined = True
        self.leaving = False
        self._turn_at = float("inf")
        self.neli: Neli = cores.neli(
            world.new_id, lanes=world.lanes, heartbeat_timeout_s=2.0, margin_s=0.2, revoke_timeout_s=3.0, name=name
        )
        world.processes.append(self)
        world.group.join(self)
        self._group_beat()

    @property
    def clock(self) -> float:
        return self.world.now + self.origin

    # ---- what its lanes do

    def harvest(self, now: float) -> None:
        """The turn of the threads that harvest."""

    def harvest_wakes(self) -> list[float]:
        return []

    def lead(self, effect: election.LeaderAcquired) -> None:
        raise NotImplementedError

    def finish(self, effect: election.FinishBatch) -> None:
        raise NotImplementedError

    def abandon(self, lane: int) -> None:
        raise NotImplementedError

    # ---- life and faults

    def crash(self) -> None:
        self.alive = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self.harvest_first = self.world.chance(0.5)  # its thread may run before that of the election

    def reconnect(self) -> None:
        self.kafka_ok = self.table_ok = True
        self.wake(0.0)

    def stop(self) -> None:
        if self.alive and not self.leaving:
            self.leaving = True
            self.post("stop")

    def post(self, *what: Any) -> None:
        if self.alive:
            self.inbox.append(what)
            self.wake(0.0)

    def notify(self) -> None:
        if self.alive and not self.paused:
            self.wake(0.0)

    def wake(self, delay: float) -> None:
        at = self.world.now + delay
        if at < self._turn_at - 1e-9:
            self._turn_at = at
            self.world.after(delay, self._turn)

    def _group_beat(self) -> None:
        """The client's own thread: heartbeats to the coordinator, and its own watch over the session."""
        if not self.alive:
            return
        if not self.paused:
            now, group = self.world.now, self.world.group
            if self.kafka_ok and self.joined and now >= self.ignorant_until:
                if self.name in group.members:
                    group.seen[self.name] = self.contact = now
                else:
                    self._lose()
            elif self.joined and now - self.contact > SESSION_TIMEOUT_S and now >= self.ignorant_until:
                self._lose()
            elif self.kafka_ok and not self.joined and not self.leaving:
                self.joined, self.contact = True, now
                group.join(self)
        self.world.after(0.5, self._group_beat)

    def _lose(self) -> None:
        self.joined = False
        self.post("lost")

    # ---- one turn of the loop

    def _turn(self) -> None:
        if self.world.now < self._turn_at - 1e-9:
            return
        self._turn_at = float("inf")
        if not self.alive or self.paused:
            return
        now = self.clock
        if self.harvest_first:
            self.harvest_first = False
            self.harvest(now)
        while self.inbox:
            what, *arguments = self.inbox.popleft()
            getattr(self, "_on_" + what)(*arguments, now)
        self._read_beats(now)
        self._elect(self.neli.tick(now))
        self._answer_revokes()
        self.harvest(now)
        times = [self.neli.wake_at(), *self.harvest_wakes()]
        self.wake(min(60.0, max(0.001, min(times) - now)))

    def _on_assign(self, partition: int, now: float) -> None:
        if self.joined:
            self.positions[partition] = len(self.world.broker.beats.get(partition, ()))
            self._elect(self.neli.assigned([partition], now))

    def _on_revoke(self, partition: int, now: float) -> None:
        self.revokes.append(partition)
        self._elect(self.neli.revoked([partition], now))

    def _on_lost(self, now: float) -> None:
        self._elect(self.neli.lost(self.neli.assigned_partitions, now))
        self._elect(self.neli.lost(self.neli.revoking, now))
        self.positions.clear()
        self.revokes.clear()

    def _on_stop(self, now: float) -> None:
        self._elect(self.neli.stop(now))

    def _on_confirmed(self, lane: int, ticket: int, ok: bool, now: float) -> None:
        self._elect(self.neli.confirmed(lane, ticket, ok, now))

    def _answer_revokes(self) -> None:
        for partition in [p for p in self.revokes if p not in self.neli.revoking]:
            self.revokes.remove(partition)
            self.positions.pop(partition, None)
            self.world.group.released(self.name, partition)

    def _read_beats(self, now: float) -> None:
        if not self.kafka_ok or self.neli.revoking:
            return  # the rebalance callback blocks the thread that polls
        for partition, position in list(self.positions.items()):
            log = self.world.broker.beats.get(partition, [])
            for offset in range(position, len(log)):
                beat = election.parse_heartbeat(log[offset])
                self._elect(self.neli.heartbeat_seen(partition, offset, beat, now))
            self.positions[partition] = len(log)

    # ---- effects of the election

    def _elect(self, effects: list[election.Effect]) -> None:
        world = self.world
        for effect in effects:
            if isinstance(effect, election.PublishHeartbeat):
                self._publish(effect)
                continue
            world.note(self.name, type(effect).__name__, effect)
            if isinstance(effect, election.ConfirmMembership):
                self._confirm(effect)
            elif isinstance(effect, election.LeaderAcquired):
                self.lead(effect)
            elif isinstance(effect, election.FinishBatch):
                self.finish(effect)
            elif isinstance(effect, (election.LeaderFenced, election.AbandonBatch)):
                self.abandon(effect.lane)
            elif isinstance(effect, election.LeaveGroup):
                self.alive = False
                world.group.leave(self.name)

    def _publish(self, effect: election.PublishHeartbeat) -> None:
        payload = election.encode_heartbeat(effect.beat)

        def arrive() -> None:
            if self.kafka_ok:
                self.beat_at[effect.lane] = self.world.now
                self.world.broker.append_beat(effect.lane, payload)

        if self.alive:
            self.world.after(self.world.latency(), arrive)

    def _confirm(self, effect: election.ConfirmMembership) -> None:
        def ask() -> None:
            if self.kafka_ok:
                group = self.world.group
                ok = group.is_owner(self.name, effect.lane)
                if self.name in group.members:
                    # A commit restarts the session, as a heartbeat does.
                    group.seen[self.name] = self.contact = self.world.now
                answer = ("confirmed", effect.lane, effect.ticket, ok)
                self.world.after(self.world.latency(), lambda: self.post(*answer))

        self.world.after(self.world.latency(), ask)
