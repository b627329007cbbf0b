"""Planted bugs: each a wrong decision of a core, or of an edge that breaks the protocol. The suite catches all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from outbox.core.neli import Effect, Neli, State, _Lane
from outbox.core.scoreboard import Phase, Scoreboard, _Key
from outbox.core.scoreboard_values import Limits, Record
from tests.simulation.scenario import Cores


class BarrierIgnoresInFlight(Scoreboard):
    def _take(self, row: Record, now: float) -> None:
        if row.id not in self._where:
            key = self._where[row.id] = self._key_of(row)
            key.busy = True
            self._ready.append(row)


class WindowOffByOne(Scoreboard):
    def __init__(self, leader_id: UUID, epoch: int, limits: Limits, now: float, **options: Any) -> None:
        super().__init__(leader_id, epoch, replace(limits, in_flight_max=limits.in_flight_max + 1), now, **options)


class FailedMarkIsForgotten(Scoreboard):
    """Rows of a mark of unknown outcome stay marked while their successors are sent."""

    def mark_failed(self, ticket: int, now: float) -> None:
        if self._settle("mark", ticket):
            self._phase = Phase.CLAIMING
            self._due["claim"] = now + self._limits.io_backoff_s


class RemarkWithoutNewId(Scoreboard):
    def refreshed(self, leader_id: UUID, now: float) -> None:
        super().refreshed(self._leader_id, now)


class MarksAreNotSorted(Scoreboard):
    def marked(self, ticket: int, rows: Sequence[Record], now: float) -> None:
        if self._settle("mark", ticket) and self._phase is Phase.RUNNING:
            self._pace_marks(len(rows), now)
            for row in rows:
                self._take(row, now)


class RefusedIsSkipped(Scoreboard):
    """The successors of a refused record do not wait for it."""

    def _set_back(self, key: _Key, id_: int, until: float) -> None:
        super()._set_back(key, id_, until)
        if key.deferred and len(key.deferred) > 1:
            key.deferred.rotate(-1)


class KeyIsFreedByTheReport(Scoreboard):
    """The key goes on at the acknowledgement, before its purge has committed."""

    def acknowledged(self, generation: int, ids: Iterable[int], now: float) -> None:
        ids = list(ids)
        super().acknowledged(generation, ids, now)
        for id_ in ids:
            key = self._where.get(id_)
            if id_ in self._acked and key is not None and key.waiting:
                self._next(key, now)


class OldReportsCount(Scoreboard):
    """Reports of producers that were thrown away are taken for those of the new ones."""

    def acknowledged(self, generation: int, ids: Iterable[int], now: float) -> None:
        super().acknowledged(self._generation, ids, now)


class UndeliveredIsSkipped(Scoreboard):
    """A record is dropped from memory when its delivery fails, and its successors go on."""

    def undelivered(self, generation: int, ids: Iterable[int], now: float) -> None:
        if generation == self._generation and self._phase is Phase.RUNNING:
            for id_ in ids:
                if self._flight.pop(id_, None):
                    self._release(id_, now)


class NoTrustAsked(Scoreboard):
    def tick(self, now: float, *, may_send: bool = True) -> list[Any]:
        return super().tick(now, may_send=True)


class DeletionOutlastsTheRemark(Scoreboard):
    """A record whose deletion was under way sleeps for ever when it is marked anew."""

    def retry(self, id_: int, at: float) -> None:
        if self._phase is Phase.RUNNING and self.is_asleep(id_):
            key = self._where[id_]
            if key.name in self._holds:
                self._holds[key.name].until = at
            self._sleep(key, at)


class SuccessorsOfTheGoneSleep(DeletionOutlastsTheRemark):
    """The hold of a record that is deleted while nobody sleeps on its account stays."""

    def gone(self, ids: Iterable[int], now: float) -> None:
        super().gone([i for i in ids if self.is_asleep(i)], now)


class NoForeignFence(Neli):
    def _foreign_beat(self, *arguments: Any) -> list[Effect]:
        return []


class TrustWithoutHeartbeats(Neli):
    def _trust_ends(self, lane: _Lane) -> float:
        return float("inf")


class TrustFromReadingBack(Neli):
    """Any beat earns trust from the moment it is read, however old it is, and membership is never asked."""

    def heartbeat_seen(self, partition: int, offset: int, beat: Any, now: float) -> list[Effect]:
        lane = self._owned.get(partition)
        if lane is None:
            return []
        lane.trusted_at = now
        if lane.state is State.CANDIDATE:
            lane.epoch = offset
            return self._acquire(partition, lane)
        return []


MUTATIONS: dict[str, Cores] = {
    "barrier ignores what is in flight": Cores(scoreboard=BarrierIgnoresInFlight),
    "window off by one": Cores(scoreboard=WindowOffByOne),
    "failed mark is forgotten": Cores(scoreboard=FailedMarkIsForgotten),
    "remark without a new leader id": Cores(scoreboard=RemarkWithoutNewId),
    "marks are not sorted": Cores(scoreboard=MarksAreNotSorted),
    "refused record is overtaken": Cores(scoreboard=RefusedIsSkipped),
    "key is freed before its purge": Cores(scoreboard=KeyIsFreedByTheReport),
    "reports of old producers count": Cores(scoreboard=OldReportsCount),
    "undelivered record is skipped": Cores(scoreboard=UndeliveredIsSkipped),
    "trust is not asked": Cores(scoreboard=NoTrustAsked),
    "no fence on a foreign heartbeat": Cores(neli=NoForeignFence),
    "trust without heartbeats": Cores(neli=TrustWithoutHeartbeats),
    "trust from the moment of reading": Cores(neli=TrustFromReadingBack),
    "purge and reset without leader guard": Cores(guarded=False),
    "claim does not stop older marks": Cores(claims_fence=False),
}

OPERATED: dict[str, Cores] = {
    "a deletion outlasts the remark": Cores(scoreboard=DeletionOutlastsTheRemark),
    "successors of what is gone sleep on": Cores(scoreboard=SuccessorsOfTheGoneSleep),
    "any deletion is believed": Cores(deletions_are_checked=False),
}
"""Bugs that show only while operators act."""

FOUND_BY = {
    "a deletion outlasts the remark": 55,
    "successors of what is gone sleep on": 4,
    "any deletion is believed": 35,
    "failed mark is forgotten": 3,
    "reports of old producers count": 55,
    "trust is not asked": 4,
    "no fence on a foreign heartbeat": 13,
    "trust from the moment of reading": 7,
    "purge and reset without leader guard": 6,
}
"""Seeds that catch the rarer ones; only a short cut."""
