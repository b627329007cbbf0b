"""Planted bugs of the election and of at-least-once delivery: each is the product without one of its rules. The suite
catches all.

Two are guards of SQL, and there it is the simulated table that lacks them; that PostgreSQL guards them is shown by
`tests/edges/postgres/test_marks.py` (marks of their leader, and takeovers that end older sessions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from outbox.core.at_least_once.held import RemoveRecords
from outbox.core.at_least_once.keys import Key
from outbox.core.at_least_once.queues import Queues
from outbox.core.at_least_once.scoreboard import PHASE, Phase, Scoreboard
from outbox.core.at_least_once.values import Record
from outbox.core.election.neli import Effect, Neli, OwnerState, _Lane
from outbox.core.region import Region
from outbox.edges.kafka.at_least_once.idempotent import Producers
from outbox.harvest.at_least_once.holds import HeldMarks
from outbox.harvest.at_least_once.lane import AtLeastOnce
from outbox.harvest.lane_host import Host
from tests.simulation.at_least_once.scenario import INTERRUPTED, PLAIN, Outcome, Rules, run
from tests.simulation.planted import PlantedBug, around


@dataclass(frozen=True)
class Planted(PlantedBug):
    rules: Rules = PLAIN

    def run(self, seed: int) -> Outcome:
        return run(seed, self.rules, self.applied)


# ---- the scoreboard


def _as_its_own_key(queues: Queues, row: Record, shard: int) -> None:
    """Ready whatever else of its key is undecided."""
    key = Key(row.id, shard)
    key.take()
    queues._where[row.id] = key
    queues._ready.append(row)


def _take_all(queues: Queues, row: Record, now: float) -> bool:
    if row.id in queues._where:
        return False
    _as_its_own_key(queues, row, queues._key_of(row).shard)
    return True


def _widen(init: Any, board: Scoreboard, leader_id: UUID, epoch: int, limits: Any, *given: Any, **named: Any) -> None:
    wide = replace(limits, in_flight_max=limits.in_flight_max + 1)
    init(board, leader_id, epoch, wide, *given, **named)


def _forget_failed_mark(board: Scoreboard, ticket: int, now: float) -> None:
    """Rows of a mark of unknown outcome stay marked while their successors are sent."""
    if board._requests.mark.settle(ticket):
        board._phase = Region(replace(PHASE, first=Phase.TAKING))
        board._requests.take.put_off(now + board._limits.io_backoff_s)


def _keep_leader_id(refreshed: Any, board: Scoreboard, leader_id: UUID, now: float) -> None:
    refreshed(board, board._leader_id, now)


def _mark_unsorted(board: Scoreboard, ticket: int, rows: Sequence[Record], now: float, **given: Any) -> None:
    if board._requests.mark.settle(ticket) and board.phase is Phase.RUNNING:
        board._requests.mark.put_off(now + board._pace.pause_s(len(rows), board._lanes))
        for row in rows:
            board._queues.take(row, now)


def _skip_refused(set_back: Any, queues: Queues, id_: int, until: float) -> None:
    """The successors of a rejected record do not wait for it."""
    set_back(queues, id_, until)
    deferred = queues._where[id_].deferred
    if deferred and len(deferred) > 1:
        deferred.rotate(-1)


def _free_by_report(acknowledged: Any, board: Scoreboard, generation: int, ids: Iterable[int], now: float) -> None:
    """The key continues at the acknowledgement, before its purge has committed."""
    ids = list(ids)
    acknowledged(board, generation, ids, now)
    for id_ in ids:
        key = board._queues._where.get(id_)
        if id_ in board._window._acknowledged and key is not None and key.waiting:
            board._queues._buffered[key.shard] -= 1
            _as_its_own_key(board._queues, key.waiting.popleft(), key.shard)


def _skip_undelivered(board: Scoreboard, generation: int, ids: Iterable[int], now: float) -> None:
    """A record is dropped from memory when its delivery fails, and its successors continue."""
    if generation == board._generation and board.phase is Phase.RUNNING:
        for id_ in ids:
            if board._window.fail(id_):
                board._queues.release([id_], now)


def _tick_untrusted(tick: Any, board: Scoreboard, now: float, **given: Any) -> list[Any]:
    return tick(board, now, **{**given, "may_send": True})  # type: ignore[no-any-return]


def _retry_for_this_term(board: Scoreboard, id_: int, at: float) -> None:
    """A record that is marked again while its deletion runs sleeps for ever."""
    if board.phase is Phase.RUNNING and board.is_asleep(id_):
        board._rejections.put_off(board._queues.name_of(id_), at)
        board._queues.sleep_until(id_, at)


def _forget_only_sleepers(gone: Any, board: Scoreboard, ids: Iterable[int], now: float) -> None:
    """The hold of a record that is deleted while nobody sleeps on its account stays."""
    gone(board, [id_ for id_ in ids if board.is_asleep(id_)], now)


# ---- the worker


def _succeed(new_producers: Any, worker: AtLeastOnce) -> Producers:
    """Reports of producers that were dropped are taken for those of the new ones."""
    made: Any = new_producers(worker)
    if (before := getattr(worker, "_producers", None)) is not None:
        before.successor = made
    return made  # type: ignore[no-any-return]


def _report_to_successor(
    report: Any, producers: Any, number: int, shard: Any, row: Any, error: Any, message: Any
) -> None:
    newest = producers
    while (successor := getattr(newest, "successor", None)) is not None:
        newest = successor
    report(producers, number, shard, row, error, message)
    if newest is not producers and error is None:
        newest.acknowledged.append(row[0])


def _drop_loudly(drop: Any, producers: Producers) -> None:
    """They are served on, and nothing that they hold is purged."""
    shards, producers._shards = producers._shards, {}
    producers._dropped = True

    def serve(client: Any) -> None:
        for _ in range(100):
            client.poll(0.05)

    for shard in shards.values():
        producers._runtime.thread(partial(serve, shard.producer), "disposal").start()


def _send_untrusted(new_producers: Any, worker: AtLeastOnce) -> Producers:
    made: Producers = new_producers(worker)
    made._may_send = lambda: True  # type: ignore[method-assign]
    return made


def _believe(run: Any, held: HeldMarks, submit: Callable[..., None], table: Any, removal: RemoveRecords) -> None:
    """Any deletion has taken place."""
    ids = frozenset(list(removal.hold_actions.heads))

    class Believed:
        @staticmethod
        def run(*given: Any, **named: Any) -> frozenset[int]:
            table.run(*given, **named)
            return ids

    def believing(name: str, job: Any, done: Any, failed: Any) -> None:
        submit(name, job, done, lambda now: done(ids, now))

    run(held, believing, Believed, removal)


# ---- the election


def _trust_reading(neli: Neli, partition: int, offset: int, beat: Any, now: float) -> list[Effect]:
    """Any beat earns trust from the moment it is read, however old it is, and membership is never asked."""
    lane = neli._owned.get(partition)
    if lane is None:
        return []
    lane.trusted_at = now
    if lane.state is OwnerState.CANDIDATE:
        lane.epoch = offset
        return neli._acquire(partition, lane)
    return []


def _trust_for_ever(neli: Neli, lane: _Lane) -> float:
    return float("inf")


def _fence_nobody(neli: Neli, *given: Any) -> list[Effect]:
    return []


_OPERATED, _OPERATED_COOPERATIVE = (3, 4), (7, 12)

MUTATIONS: dict[str, Planted] = {
    "barrier ignores what is in flight": Planted(((Queues, "take", _take_all),)),
    "window off by one": Planted((around(Scoreboard, "__init__", _widen),)),
    "failed mark is forgotten": Planted(((Scoreboard, "mark_failed", _forget_failed_mark),)),
    "remark without a new leader id": Planted((around(Scoreboard, "refreshed", _keep_leader_id),)),
    "marks are not sorted": Planted(((Scoreboard, "marked", _mark_unsorted),)),
    "rejected record is overtaken": Planted((around(Queues, "set_back", _skip_refused),)),
    "key is freed before its purge": Planted((around(Scoreboard, "acknowledged", _free_by_report),)),
    "reports of old producers count": Planted(
        (
            around(AtLeastOnce, "_new_producers", _succeed),
            around(Producers, "_report", _report_to_successor),
            around(Producers, "drop", _drop_loudly),
        )
    ),
    "undelivered record is skipped": Planted(((Scoreboard, "undelivered", _skip_undelivered),)),
    "trust is not asked": Planted(
        (
            around(Scoreboard, "tick", _tick_untrusted),
            (Host, "may_send", lambda host, lane: host._leadership.is_attached),
        )
    ),
    "a rejected batch is asked for record by record without trust": Planted(
        (around(AtLeastOnce, "_new_producers", _send_untrusted),), theme=INTERRUPTED
    ),
    "no fence on a foreign heartbeat": Planted(((Neli, "_foreign_beat", _fence_nobody),)),
    "trust without heartbeats": Planted(((Neli, "_trust_ends", _trust_for_ever),)),
    "trust from the moment of reading": Planted(((Neli, "heartbeat_seen", _trust_reading),)),
    "purge and reset without leader guard": Planted(rules=replace(PLAIN, guarded=False)),
    "a takeover does not stop older marks": Planted(rules=replace(PLAIN, takeovers_fence=False)),
    "a deletion outlasts the remark": Planted(((Scoreboard, "retry", _retry_for_this_term),), theme=_OPERATED),
    "successors of what is gone sleep on": Planted(
        (
            (Scoreboard, "retry", _retry_for_this_term),
            around(Scoreboard, "gone", _forget_only_sleepers),
        ),
        theme=_OPERATED,
    ),
    "any deletion is believed": Planted((around(HeldMarks, "_run", _believe),), theme=_OPERATED_COOPERATIVE),
}

FOUND_BY: dict[str, int] = {
    "barrier ignores what is in flight": 0,
    "window off by one": 1,
    "failed mark is forgotten": 10,
    "remark without a new leader id": 1,
    "marks are not sorted": 0,
    "rejected record is overtaken": 5,
    "key is freed before its purge": 0,
    "reports of old producers count": 37,
    "undelivered record is skipped": 5,
    "trust is not asked": 18,
    "a rejected batch is asked for record by record without trust": 1742,
    "no fence on a foreign heartbeat": 76,
    "trust without heartbeats": 9,
    "trust from the moment of reading": 13,
    "purge and reset without leader guard": 63,
    "a takeover does not stop older marks": 34,
    "a deletion outlasts the remark": 187,
    "successors of what is gone sleep on": 187,
    "any deletion is believed": 787,
}
"""Seeds that catch them; `make check` runs only these."""
