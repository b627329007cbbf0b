"""Mark, purge, reset for one lane and term: call, compare effects. No clock, no sleep, no double."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import UUID

import pytest

from outbox.core.at_least_once.scoreboard import Phase, Scoreboard
from outbox.core.at_least_once.values import (
    DeadlineExceeded,
    DropProducers,
    Fetch,
    Finished,
    LaneSuperseded,
    Limits,
    Mark,
    NotPurged,
    Purge,
    RecordHeld,
    RefreshLeader,
    RemarkRequested,
    Reset,
    Send,
    Sweep,
    TakeLane,
)

T = TypeVar("T")
ME, ME_AGAIN = UUID(int=1), UUID(int=2)
LIMITS = Limits(
    in_flight_max=10,
    mark_max=10,
    shards=1,
    shard_buffer_max=6,
    key_buffer_max=3,
    deferred_max=8,
    sweep_interval_s=100.0,
)


@dataclass(frozen=True, slots=True)
class Row:
    id: int
    kafka_key: str = "k"
    kafka_topic: str = "t"


class Bench:
    """A scoreboard past its takeover, and shorthand for one turn."""

    def __init__(self, limits: Limits = LIMITS, **options: Any) -> None:
        self.now = 0.0
        self.board = Scoreboard(ME, 7, limits, self.now, **options)
        self.generation = 0
        self.seen: list[Any] = []
        [take] = self.tick(TakeLane)
        self.board.taken(take.ticket, self.now)

    def tick(self, kind: type[T], after: float = 0.0) -> list[T]:
        """One turn; effects of `kind`, all others stay in `seen`."""
        self.now += after
        self.seen += self.board.tick(self.now)
        found = [e for e in self.seen if isinstance(e, kind)]
        self.seen = [e for e in self.seen if not isinstance(e, kind)]
        return found

    def mark(self, *rows: Row) -> None:
        [mark] = self.tick(Mark, after=0.1)
        self.board.marked(mark.ticket, rows, self.now)

    def sent(self) -> list[int]:
        return [r.id for send in self.tick(Send) for r in send.records]

    def ack(self, *ids: int) -> None:
        self.board.acknowledged(self.generation, ids, self.now)

    def purge(self) -> tuple[int, ...]:
        [purge] = self.tick(Purge)
        self.board.purged(purge.ticket, purge.ids, self.now)
        return purge.ids

    def remark(self) -> None:
        """Answer a forced remark as election and table do."""
        assert self.tick(RefreshLeader)
        self.board.refreshed(ME_AGAIN, self.now)
        [take] = self.tick(TakeLane, after=1.0)
        assert take.leader_id == ME_AGAIN
        self.board.taken(take.ticket, self.now)


def test_nothing_is_marked_before_the_claim() -> None:
    board = Scoreboard(ME, 7, LIMITS, 0.0)
    assert board.tick(0.0) == [TakeLane(1, ME, 7)]
    assert board.tick(0.0) == []
    board.take_failed(1, 0.0)
    assert board.tick(0.4) == []
    assert [type(e) for e in board.tick(0.5)] == [TakeLane]


def test_refused_claim_is_told() -> None:
    board = Scoreboard(ME, 7, LIMITS, 0.0)
    board.tick(0.0)
    board.take_refused(1, 0.0)
    assert board.tick(0.1) == [LaneSuperseded(ME)]


def test_without_trust_nothing_begins() -> None:
    bench = Bench()
    bench.mark(Row(1))
    assert bench.board.tick(0.2, may_send=False) == []


def test_rows_are_sent_in_id_order_whatever_order_they_come_in() -> None:
    bench = Bench()
    bench.mark(Row(3, "c"), Row(1, "a"), Row(2, "b"))
    assert bench.sent() == [1, 2, 3]


def test_ten_records_of_one_key_go_one_by_one() -> None:
    bench = Bench(replace(LIMITS, key_buffer_max=10, shard_buffer_max=10))
    bench.mark(*(Row(i) for i in range(1, 11)))
    for id_ in range(1, 11):
        assert bench.sent() == [id_]
        assert bench.board.in_flight_keys() == [("t", "k")]
        bench.ack(id_)
        assert bench.sent() == []  # its purge has not committed
        assert bench.purge() == (id_,)
    assert bench.board.in_flight == 0


def test_same_key_of_two_topics_does_not_wait() -> None:
    bench = Bench()
    bench.mark(Row(1, "k", "a"), Row(2, "k", "b"))
    assert bench.sent() == [1, 2]


def test_records_without_key_do_not_wait_unless_the_empty_key_is_kept() -> None:
    for keep, expected in ((False, [1, 2]), (True, [1])):
        bench = Bench(keep_empty_key=keep)
        bench.mark(Row(1, ""), Row(2, ""))
        assert bench.sent() == expected


def test_late_commit_with_a_lower_id_is_sent() -> None:
    bench = Bench()
    bench.mark(Row(2, "a"))
    assert bench.sent() == [2]
    bench.mark(Row(1, "b"))
    assert bench.sent() == [1]


def test_window_is_never_exceeded() -> None:
    bench = Bench()
    bench.mark(*(Row(i, str(i)) for i in range(6)))
    [mark] = bench.tick(Mark, after=0.1)
    assert mark.limit == 4
    bench.board.marked(mark.ticket, [Row(i, str(i)) for i in range(6, 10)], bench.now)
    assert len(bench.sent()) == 10
    assert bench.tick(Mark, after=1.0) == []
    bench.ack(0)
    assert bench.tick(Mark) == []  # in flight until purged
    bench.purge()
    assert [m.limit for m in bench.tick(Mark)] == [1]


def test_acknowledged_records_are_purged_in_batches_with_the_leader_id() -> None:
    bench = Bench(replace(LIMITS, purge_max=2))
    bench.mark(*(Row(i, str(i)) for i in range(3)))
    bench.sent()
    bench.ack(0, 1, 2)
    assert [(p.leader_id, p.ids) for p in bench.tick(Purge)] == [(ME, (0, 1))]


def test_failed_purge_is_tried_again_and_the_record_stays_in_flight() -> None:
    bench = Bench()
    bench.mark(Row(1))
    bench.sent()
    bench.ack(1)
    [purge] = bench.tick(Purge)
    bench.board.purge_failed(purge.ticket, bench.now)
    assert bench.board.in_flight == 1
    assert bench.tick(Purge, after=0.4) == []
    [again] = bench.tick(Purge, after=0.2)
    bench.board.purged(again.ticket, (), bench.now)  # the first had worked
    assert bench.board.in_flight == 0
    assert bench.tick(NotPurged) == []
    assert bench.board.phase is Phase.RUNNING


def test_purge_that_misses_rows_is_told_and_doubted() -> None:
    bench = Bench()
    bench.mark(Row(1), Row(2, "b"))
    bench.sent()
    bench.ack(1, 2)
    [purge] = bench.tick(Purge)
    bench.board.purged(purge.ticket, (2,), bench.now)
    assert bench.tick(NotPurged) == [NotPurged((1,))]
    assert bench.tick(RemarkRequested) == [RemarkRequested("rows-taken")]
    assert bench.board.in_flight == 0


def test_late_outcomes_of_forgotten_statements_change_nothing() -> None:
    bench = Bench()
    bench.mark(Row(1))
    bench.board.marked(99, [Row(5, "x")], bench.now)
    bench.board.purged(99, [1], bench.now)
    bench.board.reset_done(99, bench.now)
    assert bench.sent() == [1]


def test_undelivered_record_is_sent_again_before_its_successors() -> None:
    bench = Bench()
    bench.mark(Row(1), Row(2), Row(3, "other"))
    assert bench.sent() == [1, 3]
    bench.board.undelivered(0, [1], bench.now)
    assert bench.sent() == []
    [fetch] = bench.tick(Fetch, after=0.2)
    assert fetch.ids == (1, 2)
    bench.board.fetched(fetch.ticket, [Row(2), Row(1)], bench.now)
    assert bench.sent() == [1]
    assert bench.tick(RecordHeld) == []  # an outage spends no attempt


def test_refused_record_holds_its_key_with_growing_backoff_and_others_flow() -> None:
    bench = Bench()
    bench.mark(Row(1), Row(2))
    delays = []
    for attempt in (1, 2, 3):
        assert bench.sent() == [1]
        bench.board.refused(0, [(1, "too large")], bench.now)
        [held] = bench.tick(RecordHeld)
        assert (held.id, held.attempts, held.error) == (1, attempt, "too large")
        delays.append(held.retry_at - bench.now)
        bench.mark(Row(10 + attempt, "other"))
        assert bench.sent() == [10 + attempt]
        bench.ack(10 + attempt)
        bench.purge()
        [fetch] = bench.tick(Fetch, after=delays[-1])
        bench.board.fetched(fetch.ticket, [Row(i) for i in fetch.ids], bench.now)
    assert delays == [0.5, 1.0, 2.0]
    assert bench.sent() == [1]
    bench.ack(1)
    bench.purge()
    assert bench.board.statistics().held == 0
    assert bench.sent() == [2]


def test_attempts_survive_a_remark() -> None:
    bench = Bench()
    bench.mark(Row(1))
    bench.sent()
    bench.board.refused(0, [(1, "too large")], bench.now)
    [mark] = bench.tick(Mark, after=0.1)
    bench.board.mark_failed(mark.ticket, bench.now)
    bench.remark()
    bench.mark(Row(1))
    assert bench.sent() == []  # still held
    [fetch] = bench.tick(Fetch, after=1.0)
    bench.board.fetched(fetch.ticket, [Row(1)], bench.now)
    bench.sent()
    bench.board.refused(0, [(1, "too large")], bench.now)
    assert bench.tick(RecordHeld)[-1].attempts == 2


def being_deleted(*waiting: Row) -> Bench:
    """Record 1 was refused, and a deletion of it is under way."""
    bench = Bench()
    bench.mark(Row(1), *waiting)
    bench.sent()
    bench.board.refused(0, [(1, "too large")], bench.now)
    assert bench.board.is_asleep(1)
    bench.board.retry(1, float("inf"))
    return bench


def test_record_whose_deletion_fails_is_tried_again() -> None:
    bench = being_deleted(Row(2))
    assert bench.tick(Fetch, after=50.0) == []
    bench.board.retry(1, bench.now + 5.0)
    assert bench.tick(Fetch, after=4.9) == []
    [fetch] = bench.tick(Fetch, after=0.1)
    assert fetch.ids == (1, 2)


def test_deletion_that_fails_after_a_remark_does_not_keep_its_key_asleep() -> None:
    """The session was lost, of the mark and of the deletion: whoever hears of the latter knows no record any more."""
    bench = being_deleted(Row(2))
    [mark] = bench.tick(Mark, after=0.1)
    bench.board.mark_failed(mark.ticket, bench.now)
    bench.board.retry(1, bench.now + 5.0)  # what follows the failure: nobody sleeps here
    bench.remark()
    bench.mark(Row(1), Row(2))
    [fetch] = bench.tick(Fetch)
    bench.board.fetched(fetch.ticket, [Row(1), Row(2)], bench.now)
    assert bench.sent() == [1]


def test_attempts_survive_a_deletion_that_failed_after_a_remark() -> None:
    bench = being_deleted()
    bench.board.remark("holds", bench.now)
    bench.remark()
    bench.mark(Row(1))
    [fetch] = bench.tick(Fetch)
    bench.board.fetched(fetch.ticket, [Row(1)], bench.now)
    assert bench.sent() == [1]
    bench.board.refused(0, [(1, "too large")], bench.now)
    assert bench.tick(RecordHeld)[-1].attempts == 2


def test_successors_go_on_after_a_deletion_that_ended_during_a_remark() -> None:
    bench = being_deleted(Row(2))
    bench.board.remark("holds", bench.now)
    bench.board.gone([1], bench.now)
    bench.remark()
    assert bench.board.statistics().held == 0
    bench.mark(Row(2))
    assert bench.sent() == [2]


def test_successors_that_sleep_already_are_woken_by_a_deletion_that_ends_after_a_remark() -> None:
    bench = Bench()
    bench.board.expect(1, ("t", "k"), 1, until=1000.0)  # a rejection whose next attempt is far away
    bench.mark(Row(2), Row(3, "other"))
    assert bench.sent() == [3]
    bench.board.gone([1], bench.now)
    [fetch] = bench.tick(Fetch)
    bench.board.fetched(fetch.ticket, [Row(2)], bench.now)
    assert bench.sent() == [2]


def test_deletion_of_one_record_wakes_no_other_key() -> None:
    bench = Bench()
    bench.board.expect(1, ("t", "k"), 1, until=1000.0)
    bench.mark(Row(1), Row(2, "other"))
    assert bench.sent() == [2]
    bench.board.gone([2], bench.now)
    assert bench.tick(Fetch, after=1.0) == []
    assert bench.board.is_asleep(1)


def test_stalled_key_among_thousands_stops_nobody() -> None:
    limits = replace(LIMITS, mark_max=20, in_flight_max=20, delivery_timeout_s=1e6)
    bench = Bench(limits)
    table = [Row(i, "stalled" if i % 2 else f"k{i}") for i in range(4000)]
    sent = []
    for _ in range(2000):
        for mark in bench.tick(Mark, after=0.1):
            rows = [r for r in table if (r.kafka_topic, r.kafka_key) not in mark.exclude][: mark.limit]
            gone = dict.fromkeys(rows)
            table = [r for r in table if r not in gone]
            bench.board.marked(mark.ticket, rows, bench.now)
        ids = bench.sent()
        sent += ids
        if ids:
            bench.ack(*(i for i in ids if i % 2 == 0))  # the stalled key's record never is
        for purge in bench.tick(Purge):
            bench.board.purged(purge.ticket, purge.ids, bench.now)
        statistics = bench.board.statistics()
        assert statistics.buffered <= limits.shard_buffer_max
        assert statistics.deferred <= limits.deferred_max + limits.mark_max
        if len(sent) == 2001:
            break
    assert sum(i % 2 == 0 for i in sent) == 2000
    assert sum(i % 2 for i in sent) == 1


def test_deferred_rows_are_fetched_in_order() -> None:
    bench = Bench()
    bench.mark(*(Row(i) for i in range(10)))
    order = []
    for _ in range(10):
        order += bench.sent()
        bench.ack(order[-1])
        bench.purge()
        for fetch in bench.tick(Fetch):
            bench.board.fetched(fetch.ticket, [Row(i) for i in reversed(fetch.ids)], bench.now)
    assert order == list(range(10))


def test_failed_fetch_is_tried_again() -> None:
    bench = Bench()
    bench.mark(Row(1))
    bench.sent()
    bench.board.undelivered(0, [1], bench.now)
    [fetch] = bench.tick(Fetch, after=0.2)
    bench.board.fetch_failed(fetch.ticket, bench.now)
    [again] = bench.tick(Fetch, after=0.6)
    assert again.ids == (1,)


def test_failed_mark_forces_a_remark_with_a_new_leader_id() -> None:
    bench = Bench()
    bench.mark(Row(1), Row(2))
    assert bench.sent() == [1]
    [mark] = bench.tick(Mark, after=0.1)
    bench.board.mark_failed(mark.ticket, bench.now)
    assert bench.tick(RefreshLeader) == []  # the window is drained first
    bench.ack(1)
    bench.purge()
    bench.remark()
    bench.mark(Row(2))
    assert bench.sent() == [2]


def test_drain_of_a_remark_has_a_deadline_that_drops_the_producers() -> None:
    bench = Bench()
    bench.mark(Row(1))
    bench.sent()
    [mark] = bench.tick(Mark, after=0.1)
    bench.board.mark_failed(mark.ticket, bench.now)
    assert bench.tick(DropProducers, after=2.1) == [DropProducers(1)]
    bench.remark()
    bench.ack(1)  # of the old generation
    assert bench.tick(Purge) == []


def test_delivered_but_unpurged_rows_are_purged_unsent_after_a_remark() -> None:
    bench = delivered_and_not_purged()
    bench.mark(Row(1), Row(2), Row(3, "other"))
    assert bench.sent() == [3], "sent before the purge of 1, 2 could be overtaken by 1 under the next leader"
    [purge] = bench.tick(Purge)
    assert (purge.leader_id, purge.ids) == (ME_AGAIN, (1,))
    bench.board.purged(purge.ticket, [1], bench.now)
    assert bench.sent() == [2]


def delivered_and_not_purged() -> Bench:
    """After a remark: record 1 is in Kafka, and whether it is purged is not known."""
    bench = Bench()
    bench.mark(Row(1))
    bench.sent()
    bench.ack(1)
    [purge] = bench.tick(Purge)
    bench.board.purge_failed(purge.ticket, bench.now)
    [mark] = bench.tick(Mark, after=0.1)
    bench.board.mark_failed(mark.ticket, bench.now)
    bench.tick(Purge, after=2.1)
    bench.remark()
    return bench


@pytest.mark.parametrize(("rows", "left_out"), [([Row(0, "other")], False), ([], True)])
def test_a_mark_that_does_not_show_all_forgets_no_delivery(rows: list[Row], left_out: bool) -> None:
    """One that ended early for the size of its values, or passed over what is held."""
    bench = delivered_and_not_purged()
    [mark] = bench.tick(Mark, after=0.1)
    bench.board.marked(mark.ticket, rows, bench.now, left_out=left_out)
    assert bench.sent() == [row.id for row in rows]
    bench.mark(Row(1))
    assert bench.sent() == [], "it is in Kafka already"
    assert [purge.ids for purge in bench.tick(Purge)] == [(1,)]


def test_stray_rows_are_found_by_the_sweep_and_taken_up() -> None:
    bench = Bench(replace(LIMITS, sweep_interval_s=1.0))
    bench.mark(Row(1))
    bench.sent()
    [sweep] = bench.tick(Sweep, after=1.0)
    assert bench.tick(Mark) == []  # never beside a mark
    bench.board.swept(sweep.ticket, [1], bench.now)
    assert bench.tick(RemarkRequested) == []
    [mark] = [effect for effect in bench.seen if isinstance(effect, Mark)]
    bench.seen.clear()
    bench.board.marked(mark.ticket, [], bench.now)
    [sweep] = bench.tick(Sweep, after=1.0)
    bench.board.swept(sweep.ticket, [1, 2], bench.now)
    assert bench.tick(RemarkRequested) == [RemarkRequested("stray-rows")]


def test_rows_purged_during_the_sweep_are_no_strays() -> None:
    bench = Bench(replace(LIMITS, sweep_interval_s=1.0))
    bench.mark(Row(1))
    bench.sent()
    [sweep] = bench.tick(Sweep, after=1.0)
    bench.ack(1)
    bench.purge()
    bench.board.swept(sweep.ticket, [1], bench.now)
    assert bench.tick(RemarkRequested) == []


def test_queue_deadline_is_told_once() -> None:
    bench = Bench(replace(LIMITS, queue_timeout_s=1.0))
    bench.mark(Row(1), Row(2))
    bench.sent()
    told = [e for _ in range(20) for e in bench.tick(DeadlineExceeded, after=0.3)]
    assert [(e.kind, e.name) for e in told] == [("queue", ("t", "k"))]
    assert bench.board.phase is Phase.RUNNING  # others flow on


def test_report_that_never_comes_forces_a_remark() -> None:
    bench = Bench(replace(LIMITS, delivery_timeout_s=1.0))
    bench.mark(Row(1))
    bench.sent()
    assert [e.kind for e in bench.tick(DeadlineExceeded, after=1.1)] == ["delivery"]
    assert bench.tick(DropProducers) == [DropProducers(1)]


def test_finish_decides_what_is_in_flight_and_gives_back_the_rest() -> None:
    bench = Bench()
    bench.mark(Row(1), Row(2), Row(3))
    bench.sent()
    bench.board.finish(bench.now, bench.now + 5.0)
    [reset] = bench.tick(Reset)
    assert (reset.leader_id, reset.ids) == (ME, (2, 3))
    bench.board.reset_done(reset.ticket, bench.now)
    bench.ack(1)
    assert bench.tick(Finished) == []
    assert bench.purge() == (1,)
    bench.seen.clear()
    for mark in bench.tick(Mark):
        raise AssertionError(f"{mark} after finish")


def test_finish_with_nothing_in_hand_is_finished_at_once_and_safe_twice() -> None:
    bench = Bench()
    bench.board.finish(0.0, 5.0)
    bench.board.finish(0.0, 5.0)
    assert bench.tick(Finished) == [Finished()]
    assert bench.board.tick(9.0) == []


def test_finish_has_a_deadline() -> None:
    bench = Bench()
    bench.mark(Row(1))
    bench.sent()
    bench.board.finish(bench.now, bench.now + 1.0)
    assert bench.tick(Finished, after=0.9) == []
    assert bench.tick(Finished, after=0.2) == [Finished()]
    assert bench.tick(DropProducers) == [DropProducers(1)]


def test_abandon_drops_and_purges_only_what_was_acknowledged() -> None:
    bench = Bench()
    bench.mark(Row(1), Row(2, "b"))
    bench.sent()
    bench.ack(1)
    drop, purge = bench.board.abandon()
    assert isinstance(drop, DropProducers)
    assert isinstance(purge, Purge)
    assert (purge.leader_id, purge.ids) == (ME, (1,))
    bench.ack(2)
    assert bench.board.tick(9.0) == []
    assert bench.board.abandon() == []


def test_idle_lanes_of_one_process_share_the_pace_of_one():
    bench = Bench(replace(LIMITS, mark_backoff_min_s=0.01, mark_backoff_max_s=0.05))
    for turn in range(40):
        marks = [e for e in bench.board.tick(bench.now, lanes=4) if isinstance(e, Mark)]
        if turn == 20:
            begun, asked = bench.now, 0
        if marks:
            bench.board.marked(marks[0].ticket, [], bench.now)
            asked = asked + 1 if turn >= 20 else 0
        bench.now = bench.board.wake_at()
    assert asked / (bench.now - begun) == pytest.approx(1 / 0.2, rel=0.1)


def test_idle_marks_back_off() -> None:
    bench = Bench(replace(LIMITS, mark_backoff_min_s=0.01, mark_backoff_max_s=0.05))
    waits = []
    for _ in range(5):
        begun = bench.now
        while not (marks := bench.tick(Mark)):
            bench.now = bench.board.wake_at()
        waits.append(round(bench.now - begun, 3))
        bench.board.marked(marks[0].ticket, [], bench.now)
    assert waits == [0.0, 0.01, 0.02, 0.04, 0.05]


def test_shards_are_stable_per_key_and_all_used() -> None:
    bench = Bench(replace(LIMITS, shards=4, mark_max=100, in_flight_max=100))
    bench.mark(*(Row(i, f"k{i}") for i in range(100)))
    sends = bench.tick(Send)
    assert [s.shard for s in sends] == [0, 1, 2, 3]


@pytest.mark.parametrize("keys", [50, 100_000], ids=["few-keys", "many-keys"])
def test_bookkeeping_stays_cheap(keys: int) -> None:
    """A guard against accidental quadratic work, far above what was measured; benchmarks say how fast it is."""
    limits = Limits(in_flight_max=5000, mark_max=1000, shard_buffer_max=1000, key_buffer_max=500, purge_max=5000)
    board, now, rows = Scoreboard(ME, 7, limits, 0.0), 0.0, [Row(i, f"key-{i % keys}") for i in range(20_000)]
    taken = purged = 0
    begun = time.process_time()
    while purged < len(rows):
        now += 0.05
        for effect in board.tick(now):
            if isinstance(effect, TakeLane):
                board.taken(effect.ticket, now)
            elif isinstance(effect, Mark):
                board.marked(effect.ticket, rows[taken : taken + effect.limit], now)
                taken = min(len(rows), taken + effect.limit)
            elif isinstance(effect, Send):
                board.acknowledged(effect.generation, [r.id for r in effect.records], now)
            elif isinstance(effect, Fetch):
                board.fetched(effect.ticket, [rows[i] for i in effect.ids], now)
            elif isinstance(effect, Purge):
                purged += len(effect.ids)
                board.purged(effect.ticket, effect.ids, now)
    assert (time.process_time() - begun) / len(rows) < 100e-6


def test_while_large_records_fill_the_memory_no_others_are_marked_or_fetched() -> None:
    bench = Bench(replace(LIMITS, bytes_max=1000))
    [mark] = bench.tick(Mark, after=0.1)
    rows = [Row(1, "a"), Row(2, "b"), Row(3, "c"), Row(4, "c")]
    bench.board.marked(mark.ticket, rows, bench.now, large={1: 600, 2: 300, 3: 400, 4: 400})
    assert bench.sent() == [1, 2, 3]
    assert bench.tick(Mark, after=1.0) == []
    assert bench.board.wake_at() > bench.now
    bench.board.undelivered(0, [3], bench.now)  # set back, and 4 with it: only their ids are kept
    [mark] = bench.tick(Mark, after=0.01)
    bench.board.marked(mark.ticket, [Row(5, "d")], bench.now, large={5: 200})
    assert bench.sent() == [5]
    assert bench.tick(Fetch, after=1.0) == []
    bench.ack(1, 2)
    bench.purge()
    [fetch] = bench.tick(Fetch)
    assert fetch.ids == (3, 4)
    bench.board.fetched(fetch.ticket, [Row(3, "c")], bench.now, left=[4], large={3: 400})
    assert bench.sent() == [3]
    bench.ack(3, 5)
    bench.purge()
    [fetch] = bench.tick(Fetch)
    assert fetch.ids == (4,)
    bench.board.fetched(fetch.ticket, [Row(4, "c")], bench.now, large={4: 400})
    assert bench.sent() == [4]
    bench.ack(4)
    bench.purge()
    assert bench.board._queues.large.total == 0


def test_rows_left_unread_keep_their_order_and_those_taken_force_a_remark() -> None:
    bench = Bench(replace(LIMITS, key_buffer_max=3, shard_buffer_max=3))
    bench.mark(*(Row(n) for n in range(1, 6)))
    bench.sent()
    bench.board.undelivered(0, [1], bench.now)
    [fetch] = bench.tick(Fetch, after=1.0)
    bench.board.fetched(fetch.ticket, [], bench.now, left=fetch.ids)
    sent = []
    while len(sent) < 5:
        for fetch in bench.tick(Fetch, after=0.1):
            first, *left = fetch.ids
            bench.board.fetched(fetch.ticket, [Row(first)], bench.now, left=left)
        ids = bench.sent()
        sent += ids
        if ids:
            bench.ack(*ids)
            bench.purge()
    assert sent == [1, 2, 3, 4, 5]
    assert bench.board.statistics().buffered == bench.board.statistics().deferred == 0


def test_a_long_key_is_remembered_by_a_digest() -> None:
    bench = Bench()
    bench.mark(Row(1, "x" * 20_000), Row(2, "x" * 20_000), Row(3, "y" * 20_000))
    assert bench.sent() == [1, 3]
    bench.board.refused(0, [(1, "too large")], bench.now)
    [held] = bench.tick(RecordHeld)
    assert isinstance(held.name, tuple)
    assert len(held.name[1]) == 32


@pytest.mark.parametrize(
    ("reason", "asks"),
    [
        ("rows-taken", True),
        ("mark-failed", False),
        ("stray-rows", False),
        ("delivery-deadline", False),
        ("holds", False),
    ],
)
def test_the_election_is_asked_when_rows_are_gone_that_were_marked_here(reason, asks):
    assert RemarkRequested(reason).asks_election is asks
