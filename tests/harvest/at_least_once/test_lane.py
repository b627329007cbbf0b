"""The at-least-once worker on a real PostgreSQL and a real Kafka, without faults of theirs."""

import time
import uuid
from collections import Counter

import psycopg
import pytest

from outbox.core.at_least_once.values import NotPurged, RecordHeld, RemarkRequested
from outbox.core.contract import MeterRead
from outbox.edges.postgres.at_least_once.marks import Marks, WrongTable
from outbox.edges.postgres.common.table import connect_bounded
from tests.harvest.hosts import Host, finish, wait_until
from tests.support.proxy import HOLD, PRODUCE


def test_everything_is_delivered_once_in_order_and_purged(bench):
    keys = [f"key-{n % 37}" for n in range(3000)]
    bench.insert(keys)
    with bench.working() as host:
        bench.wait_empty()
        finish(host)
    found = bench.by_key()
    expected = {key: [n for n, other in enumerate(keys, 1) if other == key] for key in set(keys)}
    assert found == expected
    assert host.errors == []


@pytest.mark.parametrize(("number", "event"), [(-1, "database_failed"), (2**31 - 2, "lane_refused")])
def test_the_log_tells_who_keeps_a_lane_from_its_owner(bench, caplog, number, event):
    """Whoever may connect can take the locks of a lane."""
    bench.insert(["a"])
    with psycopg.connect(bench.url, autocommit=True, application_name="psql") as stranger:
        space = Marks("outbox")._inspect(bench.db)[0]
        stranger.execute("SELECT pg_advisory_lock(%s, %s)", [space, number])
        who = f"pid {stranger.info.backend_pid} (role 'postgres', application_name 'psql'"
        with bench.working(STATEMENT_TIMEOUT=0.4):
            wait_until(lambda: any(line.startswith(event) and who in line for line in caplog.messages))
            assert f"pg_terminate_backend({stranger.info.backend_pid})" in caplog.text
            stranger.close()
            bench.wait_empty()


def test_what_is_written_later_is_delivered_too_whatever_its_id(bench):
    """A transaction that began earlier commits later: its lower id is found all the same."""
    with psycopg.connect(bench.url) as slow, bench.working():
        slow.execute("INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, 'a', '1')", [bench.topic])
        bench.insert(["b"])
        wait_until(lambda: [r.key for r in bench.read()] == [b"b"])
        slow.commit()
        bench.wait_empty()
    assert set(bench.by_key()) == {"a", "b"}


def test_a_hot_key_has_one_record_in_flight_and_the_window_is_never_exceeded(proxied):
    proxied.insert(["hot"] * 10 + [f"k{n}" for n in range(50)])
    rule = proxied.proxy.on_request(PRODUCE, HOLD, times=None)
    with proxied.working(IN_FLIGHT_MAX=7, DELIVERY_TIMEOUT=20) as host:
        wait_until(lambda: host.worker.statistics().in_flight == 7)
        seen = host.worker.statistics()
        assert Counter(seen.in_flight_keys)[proxied.topic, "hot"] == 1
        assert len(set(seen.in_flight_keys)) == 7
        rule.release()
        most = 0
        while proxied.count:
            most = max(most, host.worker.statistics().in_flight)
        assert most <= 7
        assert len(proxied.by_key()["hot"]) == 10


def test_finish_gives_back_what_was_not_sent_and_repeats_nothing(bench):
    bench.insert([f"key-{n % 10}" for n in range(5000)])
    for _ in range(3):
        with bench.working() as host:
            wait_until(lambda host=host: host.worker.statistics().delivered > 100)
            finish(host)
        assert bench.db.execute("SELECT count(*) FROM outbox WHERE leader_id IS NOT NULL").fetchone() == (0,)
    with bench.working() as host:
        bench.wait_empty()
    assert sorted(value for values in bench.by_key().values() for value in values) == list(range(1, 5001))


def test_finish_before_anything_and_twice(bench):
    with bench.working() as host:
        finish(host)
        host.ended.clear()
        host.worker.finish(time.monotonic() + 5)
        assert host.ended.wait(15)


def test_an_abandoned_lane_sends_nothing_more(proxied):
    proxied.insert([f"k{n}" for n in range(100)])
    rule = proxied.proxy.on_request(PRODUCE, HOLD, times=None)
    with proxied.working(DELIVERY_TIMEOUT=50, SEND_CONCURRENCY=1) as host:
        rule.wait()
        host.worker.abandon()
        assert host.worker.join(15), "it waits for the delivery"
        rule.drop()
    assert proxied.read() == []
    assert proxied.count == 100


def test_nothing_is_marked_or_sent_without_trust(bench):
    host = Host()
    host.trusted = False
    bench.insert(["a", "b"])
    with bench.working(host=host):
        wait_until(lambda: host.worker.statistics().phase == "taking")
        time.sleep(0.3)
        assert bench.db.execute("SELECT count(*) FROM outbox WHERE leader_id IS NOT NULL").fetchone() == (0,)
        host.trusted = True
        bench.wait_empty()
        host.trusted = False
        wait_until(lambda: host.worker.statistics().in_flight == 0)
        bench.insert(["c"])
        time.sleep(0.3)
        assert bench.count == 1
        assert len(bench.read()) == 2


def test_a_refused_record_holds_its_key_and_an_operator_can_free_it(bench):
    ids = bench.insert(["bad", "bad", "good"] * 20)
    bench.db.execute("UPDATE outbox SET kafka_value = repeat('x', 2000000) WHERE id = %s", [ids[0]])
    with bench.working(MARK_MAX=7) as host:
        wait_until(lambda: bench.count == 40)
        wait_until(lambda: len(host.of(RecordHeld)) >= 2)
        first, second = host.of(RecordHeld)[:2]
        assert (first.id, first.name, first.attempts) == (ids[0], (bench.topic, "bad"), 1)
        assert (second.id, second.attempts) == (ids[0], 2)
        assert "MSG_SIZE_TOO_LARGE" in first.error
        assert set(bench.by_key()) == {"good"}
        bench.db.execute("UPDATE outbox SET kafka_value = '0' WHERE id = %s", [ids[0]])
        bench.wait_empty()
    assert bench.by_key()["bad"] == [0, *(n for n in range(2, 61) if n % 3)]
    assert host.of(RemarkRequested) == []


def test_unequal_headers_hold_back_only_their_key(bench):
    ids = bench.insert(["bad", "good"] * 500)
    bench.db.execute(
        "UPDATE outbox SET kafka_header_keys = '{a,b}', kafka_header_values = '{1}' WHERE id = %s", ids[:1]
    )
    with bench.working() as host:
        wait_until(lambda: bench.count == 500)
        assert host.of(RecordHeld)[0].error == "The record has 2 header keys, but 1 header values."
        assert len(bench.by_key()["good"]) == 500


@pytest.mark.parametrize(("name", "value"), [("a", "NULL"), ("NULL", "1"), ("{a}", "{1}")])
def test_a_header_that_is_no_text_holds_back_only_its_key(bench, name, value):
    """A table of others has no constraint against it."""
    bench.insert(["bad", "good"] * 10)
    bench.db.execute(
        "UPDATE outbox SET kafka_header_keys = %s, kafka_header_values = %s WHERE id = 1",
        [f"{{{name}}}", f"{{{value}}}"],
    )
    with bench.working() as host:
        wait_until(lambda: bench.count == 10)
        assert host.of(RecordHeld)[0].error == "A header key or value of the record is NULL or not a text."
        assert len(bench.by_key()["good"]) == 10


def test_a_key_that_is_null_is_no_key(bench):
    """A table of others may have it."""
    bench.db.execute("ALTER TABLE outbox ALTER kafka_key DROP NOT NULL")
    bench.insert(["a", "b", "a"])
    bench.db.execute("UPDATE outbox SET kafka_key = NULL WHERE id = 2")
    with bench.working() as host:
        bench.wait_empty(20)
    assert bench.by_key() == {"a": [1, 3], None: [2]}
    assert host.of(RecordHeld) == []


def test_a_topic_that_is_missing_holds_back_its_own_records(bench):
    bench.insert(["k", "k"], topic="not-there")
    bench.insert([f"k{n}" for n in range(100)])
    with bench.working(DELIVERY_TIMEOUT=2) as host:
        wait_until(lambda: bench.count == 2)
        held = wait_until(lambda: host.of(RecordHeld))
        assert held[0].name == ("not-there", "k")


def test_records_without_key_are_sent_with_a_null_key_and_wait_for_nobody(proxied):
    proxied.insert([""] * 20)
    rule = proxied.proxy.on_request(PRODUCE, HOLD, times=None)
    with proxied.working(DELIVERY_TIMEOUT=20) as host:
        wait_until(lambda: host.worker.statistics().in_flight == 20)
        rule.release()
        proxied.wait_empty()
    assert len(proxied.by_key()[None]) == 20


def test_the_empty_key_can_be_kept_as_a_key_with_order(bench):
    bench.insert([""] * 20)
    with bench.working(KEEP_EMPTY_KEY=True):
        bench.wait_empty()
    assert bench.by_key() == {"": list(range(1, 21))}


def test_rows_marked_by_somebody_else_are_taken_over(bench):
    """As after a crash of another harvester of this layout."""
    bench.insert(["a", "b"])
    bench.db.execute("UPDATE outbox SET leader_id = %s", [uuid.uuid4()])
    with bench.working():
        bench.wait_empty()


def test_rows_taken_away_in_flight_raise_doubt_and_a_remark(proxied):
    proxied.insert([f"k{n}" for n in range(5)])
    rule = proxied.proxy.on_request(PRODUCE, HOLD, times=None)
    with proxied.working(DELIVERY_TIMEOUT=20) as host:
        wait_until(lambda: host.worker.statistics().in_flight == 5)
        proxied.db.execute("DELETE FROM outbox")
        rule.release()
        assert len(wait_until(lambda: host.of(NotPurged))[0].ids) > 0
        wait_until(lambda: host.doubts == 1)
        assert [event.reason for event in host.of(RemarkRequested)] == ["rows-taken"]


def test_rows_marked_and_forgotten_are_found_by_the_sweep(bench):
    with bench.working(SWEEP_INTERVAL=0.2) as host:
        leader = host.worker.statistics().leader_id
        bench.insert(["a", "b"])
        bench.db.execute("UPDATE outbox SET leader_id = %s", [leader])
        bench.wait_empty()


def test_records_are_delivered_whatever_their_create_time_is(bench):
    bench.db.execute("ALTER TABLE outbox ALTER create_time DROP NOT NULL")
    times = "NULL", "'infinity'", "'-infinity'", "'20000-01-01'", "'0044-03-15 BC'"
    for id_, created in enumerate(times, 1):
        bench.insert(["a"])
        bench.db.execute(f"UPDATE outbox SET create_time = {created} WHERE id = {id_}")
    with bench.working() as host:
        bench.wait_empty()
        finish(host)
    assert bench.by_key() == {"a": [1] * len(times)}
    assert host.errors == []


def test_a_newer_owner_is_stepped_down_for(bench):
    with connect_bounded({"conninfo": bench.url}, statement_timeout_s=5) as other:
        assert Marks("outbox").take(other, 1000, 5)
        bench.insert(["a"])
        with bench.working(epoch=999) as host:
            wait_until(lambda: host.step_downs)
            assert bench.count == 1


def test_a_newer_owner_ends_the_session_of_the_older_one(bench):
    with bench.working(epoch=5) as older:
        wait_until(lambda: older.worker.statistics().phase == "running")
        with bench.working(epoch=6) as newer:
            wait_until(lambda: newer.worker.statistics().phase == "running")
            wait_until(lambda: older.step_downs)
            bench.insert(["a"] * 10)
            bench.wait_empty()
            assert older.worker.statistics().delivered == 0


def test_a_wrong_table_is_fatal_and_named(bench):
    bench.db.execute("ALTER TABLE outbox DROP kafka_header_keys")
    with bench.working() as host:
        error = wait_until(lambda: host.errors)[0]
        assert isinstance(error, WrongTable)
        assert "lacks the columns kafka_header_keys" in str(error)


def test_lanes_share_the_table_and_keep_keys_together(bench):
    keys = [f"key-{n % 50}" for n in range(2000)]
    bench.insert(keys)
    with bench.working(LANES=2, lane=0) as first, bench.working(LANES=2, lane=1) as second:
        bench.wait_empty()
        assert first.worker.statistics().delivered > 0 < second.worker.statistics().delivered
    assert all(values == sorted(values) for values in bench.by_key().values())
    assert len(bench.read()) == 2000


def test_the_meter_reads_only_while_records_are_delivered(bench):
    bench.insert([f"k{n}" for n in range(100)])
    with bench.working(METRICS_INTERVAL=0.2) as host:
        reading = wait_until(lambda: host.of(MeterRead))[0]
        assert 0 < reading.delivered <= 100
        assert reading.rate > 0 < reading.average_rate
        bench.wait_empty()
        wait_until(lambda: host.of(MeterRead)[-1].delivered == 100)
        count = len(host.of(MeterRead))
        time.sleep(0.5)
        assert len(host.of(MeterRead)) == count


def test_an_idle_lane_asks_at_most_20_times_a_second(bench):
    with bench.working(METRICS_INTERVAL=0.2) as host:
        wait_until(lambda: host.worker.statistics().phase == "running")
        time.sleep(0.5)  # the pauses have grown to their longest
        asked = []
        session = host.worker._statements.mark_session
        submit = session.submit
        session.submit = lambda *given, **named: (asked.append(given), submit(*given, **named))
        begun = time.monotonic()
        wait_until(lambda: len(asked) >= 21)
        assert time.monotonic() - begun >= 0.95
        assert bench.db.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outbox harvest'"
            " AND datname = current_database()"
        ).fetchone() <= (2,)  # marks, and from the first repetition of the lease on the purges


@pytest.mark.parametrize("binary", [True, False])
def test_the_goharvest_layout_is_harvested(bench, binary):
    if not binary:
        bench.db.execute("ALTER TABLE outbox DROP kafka_value_binary")
    bench.insert(["a", "b"])
    with bench.working():
        bench.wait_empty()
    assert bench.by_key() == {"a": [1], "b": [2]}


class LateDoubt(Host):
    """Trusted when the turn begins, not any more when its records are about to be sent."""

    may_send_now = False

    def may_send(self, lane):
        return self.may_send_now


def test_trust_is_asked_again_before_each_batch_is_sent(bench):
    host = LateDoubt()
    bench.insert(["a", "b"])
    with bench.working(host=host):
        wait_until(lambda: host.worker.statistics().board.undelivered_total >= 2)
        assert bench.read() == []
        host.may_send_now = True
        bench.wait_empty()
    assert len(bench.read()) == 2


def test_no_mark_is_made_on_a_connection_that_has_not_claimed_the_lane(bench):
    with bench.working() as host:
        wait_until(lambda: host.worker.statistics().phase == "running")
        epochs = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2"
        assert bench.db.execute(epochs).fetchone() == (1,)

        def break_it(connection):
            raise OSError("the connection is dropped, as after any unknown outcome")

        host.worker._statements.mark_session.submit(break_it, lambda result, error, now: None, 5)
        wait_until(lambda: [event.reason for event in host.of(RemarkRequested)] == ["mark-failed"])
        bench.insert(["a"])
        bench.wait_empty()
        assert bench.db.execute(epochs).fetchone() == (1,)
