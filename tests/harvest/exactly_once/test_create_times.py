"""create_time is whatever writers supply: no value of it stops a lane, and rows that were sent are told from others."""

import re

import pytest

from outbox.core.exactly_once import ledger
from outbox.harvest.exactly_once.resolve import Resolver
from outbox.harvest.exactly_once.rounds import read_connection
from tests.faults.exactly_once import without_guards
from tests.harvest.exactly_once.bench import finish, stopped, wait_until
from tests.harvest.exactly_once.test_kills import wait_killed
from tests.harvest.exactly_once.test_resolve import PURGE_SENT, examine, resolve

ODD = ("NULL", "'infinity'", "'-infinity'", "'20000-01-01'", "'0044-03-15 BC'")
AHEAD = "clock_timestamp() + interval '5 s'"


def supply(bench, keys, time):
    """As `stash`, with a create_time of the writer's."""
    bench.db.execute("ALTER TABLE outbox ALTER create_time DROP NOT NULL")
    ids = bench.stash(keys)
    bench.db.execute(f"UPDATE outbox SET create_time = {time} WHERE id = ANY(%s)", [ids])
    return ids


def sent_and_not_purged(bench):
    wait_killed(bench.spawn("after-commit=kill"))


def test_a_rewritten_table_whose_times_are_ahead_of_the_clock_is_purged(bench, monkeypatch):
    gate = without_guards.gate_purges(monkeypatch)
    supply(bench, ["a", "b"] * 10, AHEAD)
    with bench.working():
        assert gate.reached.wait(60)
        bench.db.execute("VACUUM FULL outbox")
        gate.open()
        bench.wait_empty()
    bench.check()


@pytest.mark.parametrize("times", [[AHEAD], ODD])
def test_a_successor_settles_a_batch_whatever_its_times_are(bench, times):
    """Ahead of the clock they are where a writer's is fast, and where that of the server was set back since."""
    bench.stash(["a", "b"] * 3)
    for time in times:
        supply(bench, ["a", "c"], time)
    sent_and_not_purged(bench)
    with bench.working():
        bench.wait_empty()
    bench.check()


def test_a_held_record_without_a_time_disturbs_no_read(bench, monkeypatch):
    monkeypatch.setattr(read_connection, "_SAMPLE_S", 0.0)
    reading = "SELECT pid, backend_start FROM pg_stat_activity WHERE application_name = 'outbox read'"
    for time in ODD:
        supply(bench, ["held"], time)
    bench.db.execute("INSERT INTO outbox_hold (topic, key, reason) VALUES (%s, 'held', 'paused')", [bench.topic])
    with bench.working():
        bench.stash(["a"])
        wait_until(lambda: bench.count == len(ODD))
        before = bench.db.execute(reading).fetchall()
        for _ in range(3):
            bench.stash(["a"])
            wait_until(lambda: bench.count == len(ODD))
        assert bench.db.execute(reading).fetchall() == before
        bench.db.execute("DELETE FROM outbox_hold")
        bench.wait_empty()
    bench.check()


def test_equal_records_under_ids_drawn_again_are_told_apart_by_their_time(bench):
    """Older ones too: the server's clock may have been set back."""
    insert = "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, create_time) SELECT %s, 'k', 'ping', now()"
    rows = "FROM generate_series(1, 20)"
    bench.db.execute(f"{insert} {rows}", [bench.topic])
    sent_and_not_purged(bench)
    bench.db.execute("TRUNCATE outbox RESTART IDENTITY")
    bench.db.execute(f"{insert} - interval '1 h' {rows}", [bench.topic])
    with bench.working() as host:
        assert re.search("ids were drawn a second time", stopped(host))
    assert bench.count == 20


def test_the_entry_of_an_older_release_is_settled(bench, monkeypatch):
    bench.stash(["a", "b"] * 3)
    with without_guards.never_purging(monkeypatch) as patch, bench.working():
        patch.setattr(ledger, "headers", lambda entry: [])
        wait_until(bench.read)
    with bench.working():
        bench.wait_empty()
    bench.check()


# ---- what an operator decides by it


def test_of_an_older_release_s_entry_the_rows_ahead_of_its_reading_are_kept_and_sent_again(bench, monkeypatch):
    bench.stash(["a"] * 4)
    supply(bench, ["b"] * 2, "clock_timestamp() + interval '1 h'")
    with without_guards.never_purging(monkeypatch) as patch, bench.working():
        patch.setattr(ledger, "headers", lambda entry: [])
        wait_until(lambda: len(bench.read()) == 6)
    bench.db.execute("VACUUM FULL outbox")
    with bench.working() as host:
        assert "outbox_resolve" in stopped(host)
        case = examine(bench)
        assert (case.found, case.sent) == (6, 4)
        assert resolve(bench, PURGE_SENT).deleted == 4
        bench.wait_empty()
    assert [record.key for record in bench.read()].count(b"b") == 4


def restored(bench, *ids, batch=0):
    """The database went back to before the purges, with these of its records; one batch has all of them. From a `batch`
    before 0 on the next owner does not settle it by itself."""
    bench.db.execute("INSERT INTO outbox SELECT * FROM saved WHERE id = ANY(%s)", [list(ids)])
    bench.db.execute("UPDATE outbox_purged SET batch = %s", [batch])
    bench.db.execute("SELECT setval('outbox_id_seq', %s)", [max(ids)])


def delivered(bench, count):
    """In one batch, with times that are ahead of the clock and beside the calendar."""
    ids = supply(bench, ["a"] * (count - 2), AHEAD) + supply(bench, ["a"] * 2, "NULL")
    bench.db.execute("CREATE TABLE saved AS SELECT * FROM outbox")
    with bench.working() as host:
        bench.wait_empty()
        finish(host)
    return ids


def test_a_whole_batch_that_was_sent_is_recognised_whatever_its_times_are(bench):
    ids = delivered(bench, 30)
    restored(bench, *ids, batch=-1)
    assert resolve(bench, PURGE_SENT).deleted == 30
    bench.stash(["a"])
    with bench.working():
        bench.wait_empty()
    bench.check()


def test_of_a_batch_in_part_the_sent_are_told_from_those_that_drew_a_lost_id(bench):
    ids = delivered(bench, 30)
    restored(bench, *ids[:20])
    drawn_again = supply(bench, ["new"] * 5, "clock_timestamp() + interval '10 s'")
    assert drawn_again == ids[20:25]
    assert resolve(bench, PURGE_SENT).deleted == 20
    with bench.working():
        bench.wait_empty()
    bench.check()


def test_equal_records_that_drew_the_ids_of_a_whole_batch_are_kept(bench):
    ids = delivered(bench, 30)
    restored(bench, *ids, batch=-1)
    bench.db.execute("UPDATE outbox SET create_time = create_time - interval '1 s'")
    assert resolve(bench, PURGE_SENT).deleted == 0


def test_records_that_draw_the_ids_of_a_whole_batch_after_the_look_are_kept(bench, monkeypatch):
    ids = delivered(bench, 30)
    restored(bench, *ids, batch=-1)
    settle, drawn_again = Resolver._settle_by_hand, []

    def late(self, case, decision):
        if not drawn_again:
            assert case.sent == 30
            bench.db.execute("TRUNCATE outbox RESTART IDENTITY")
            drawn_again.extend(supply(bench, ["new"] * 30, "clock_timestamp() + interval '10 s'"))
        return settle(self, case, decision)

    monkeypatch.setattr(Resolver, "_settle_by_hand", late)
    assert resolve(bench, PURGE_SENT).deleted == 0
    assert drawn_again == ids
    assert bench.count == 30
    with bench.working():
        bench.wait_empty()
    bench.check()
