"""The at-least-once worker while PostgreSQL or Kafka fails beside it."""

import time
from collections import Counter
from urllib.parse import urlsplit

import psycopg
import pytest

from outbox.core.at_least_once.values import RecordHeld, RemarkRequested
from tests.harvest.hosts import finish, wait_until
from tests.support.proxy import DROP, HOLD, PRODUCE, TO_CLIENT, TO_SERVER, Proxy


@pytest.fixture
def database(bench):
    """The database of `bench` by way of a proxy."""
    with Proxy(target=urlsplit(bench.url).port) as proxy:
        proxy.url = proxy.rewrite(bench.url)
        yield proxy


def running(host):
    wait_until(lambda: host.worker.statistics().phase == "running")


def assert_nothing_lost_and_in_order(bench, keys, *, repeats):
    """Each value arrives, repeats of a key are adjacent, order per key never goes back."""
    found = bench.by_key()
    total = 0
    for key in set(keys):
        expected = [n for n, other in enumerate(keys, 1) if other == key]
        values = found[key]
        total += len(values)
        assert values == sorted(values), f"{key} went back: {values}"
        assert sorted(set(values)) == expected
    assert total - len(keys) <= repeats


def test_a_mark_whose_reply_is_lost_is_made_again(bench, database):
    """The backend has committed the mark, the connection breaks before its rows are read."""
    keys = [f"k{n % 20}" for n in range(300)]
    with bench.working(url=database.url, MARK_MAX=50) as host:
        running(host)
        host.trusted = False  # no mark is under way whose reply would be held instead
        wait_until(lambda: not host.worker._board._requests.mark.is_awaited)
        database.hold(TO_CLIENT)
        bench.insert(keys)
        host.trusted = True
        wait_until(lambda: bench.db.execute("SELECT count(*) FROM outbox WHERE leader_id IS NOT NULL").fetchone()[0])
        assert bench.read() == []
        database.cut()
        database.heal()
        bench.wait_empty()
        assert "mark-failed" in [event.reason for event in host.of(RemarkRequested)]
        assert host.errors == []
    assert_nothing_lost_and_in_order(bench, keys, repeats=0)


def test_purges_whose_replies_are_lost_are_repeated_harmlessly(bench, database):
    keys = [f"k{n % 50}" for n in range(1000)]
    with bench.working(url=database.url, MARK_MAX=100, IN_FLIGHT_MAX=200) as host:
        running(host)
        bench.insert(keys)
        for _ in range(5):
            delivered = host.worker.statistics().delivered
            wait_until(lambda delivered=delivered: host.worker.statistics().delivered > delivered or not bench.count)
            database.cut()
        bench.wait_empty()
        assert host.errors == []
    assert_nothing_lost_and_in_order(bench, keys, repeats=5 * 200)


def test_a_database_that_is_down_is_survived(bench, database):
    keys = [f"k{n % 10}" for n in range(200)]
    with bench.working(url=database.url) as host:
        running(host)
        database.refuse()
        database.cut()
        bench.insert(keys)
        time.sleep(0.5)
        assert bench.count == 200
        database.heal()
        bench.wait_empty()
        assert host.errors == []
    assert_nothing_lost_and_in_order(bench, keys, repeats=0)


def test_a_database_that_is_down_at_the_start_is_waited_for(bench, database):
    database.refuse()
    bench.insert(["a"])
    with bench.working(url=database.url) as host:
        time.sleep(0.3)
        database.heal()
        bench.wait_empty()
        assert host.errors == []


@pytest.mark.parametrize("fault", ["refuse", "silence"])
def test_finish_is_bounded_while_the_database_is_down(bench, database, fault):
    with bench.working(url=database.url, STATEMENT_TIMEOUT=60) as host:
        running(host)
        if fault == "refuse":
            database.refuse()
            database.cut()
        else:
            database.hold(TO_SERVER)
        bench.insert(["a"] * 10)
        time.sleep(0.2)
        begun = time.monotonic()
        finish(host, within_s=2)
        assert time.monotonic() - begun < 20, "it waits for the statement"


def test_abandon_is_at_once_while_the_database_is_silent(bench, database):
    with bench.working(url=database.url, STATEMENT_TIMEOUT=60) as host:
        running(host)
        database.hold(TO_SERVER)
        time.sleep(0.2)
        host.worker.abandon()
        assert host.worker.join(20), "it waits for the statement"


def test_a_silent_database_is_given_up_and_survived(bench, database):
    """No reset, no answer: only the bound on the harvester's side ends the wait."""
    with bench.working(url=database.url, STATEMENT_TIMEOUT=0.5) as host:
        running(host)
        database.hold(TO_SERVER)
        bench.insert(["a", "b"])
        wait_until(lambda: host.of(RemarkRequested))
        database.cut()
        database.heal()
        bench.wait_empty()
        assert host.errors == []


def test_a_locked_row_delays_and_is_marked_after_all(bench):
    keys = ["a"] * 3 + ["b"] * 3
    bench.insert(keys)
    with psycopg.connect(bench.url) as other:
        other.execute("SELECT FROM outbox ORDER BY id LIMIT 1 FOR UPDATE")
        with bench.working(STATEMENT_TIMEOUT=0.6) as host:
            wait_until(lambda: len(host.of(RemarkRequested)) >= 2)
            other.rollback()
            bench.wait_empty()
            assert host.errors == []
    assert_nothing_lost_and_in_order(bench, keys, repeats=0)


def test_an_outage_of_kafka_costs_no_attempt_and_drains_afterwards(proxied):
    keys = [f"k{n % 30}" for n in range(600)]
    with proxied.working(DELIVERY_TIMEOUT=1) as host:
        running(host)
        proxied.proxy.refuse()
        proxied.proxy.cut()
        proxied.insert(keys)
        wait_until(lambda: host.worker.statistics().board.undelivered_total > 30)
        assert host.worker.statistics().circuit.state == "open"
        proxied.proxy.heal()
        proxied.wait_empty()
        assert host.of(RecordHeld) == []
        assert host.of(RemarkRequested) == []
        assert host.errors == []
    assert_nothing_lost_and_in_order(proxied, keys, repeats=0)


def test_lost_acknowledgements_repeat_records_and_never_turn_them_back(proxied):
    keys = [f"k{n % 30}" for n in range(600)]
    with proxied.working(DELIVERY_TIMEOUT=1, SEND_CONCURRENCY=2) as host:
        running(host)
        rules = [proxied.proxy.on_reply(PRODUCE, DROP, times=2)]
        proxied.insert(keys)
        rules[0].wait(2)
        time.sleep(0.5)
        proxied.proxy.cut()
        proxied.wait_empty()
        assert host.errors == []
    assert_nothing_lost_and_in_order(proxied, keys, repeats=60)


def test_finish_is_bounded_while_kafka_is_silent(proxied):
    proxied.insert([f"k{n}" for n in range(20)])
    proxied.proxy.on_request(PRODUCE, HOLD, times=None)
    with proxied.working(DELIVERY_TIMEOUT=30) as host:
        wait_until(lambda: host.worker.statistics().in_flight == 20)
        begun = time.monotonic()
        finish(host, within_s=1)
        assert time.monotonic() - begun < 15, "it waits for the delivery"
        assert proxied.count == 20


def test_records_finish_while_they_are_acknowledged_late(proxied):
    """Stop flushes: what is in flight is awaited, purged and not repeated."""
    keys = [f"k{n}" for n in range(20)]
    proxied.insert(keys)
    rule = proxied.proxy.on_request(PRODUCE, HOLD, times=None)
    with proxied.working(DELIVERY_TIMEOUT=30) as host:
        wait_until(lambda: host.worker.statistics().in_flight == 20)
        host.worker.finish(time.monotonic() + 10)
        time.sleep(0.3)
        rule.release()
        assert host.ended.wait(8)
    assert proxied.count == 0
    assert Counter(record.key for record in proxied.read()) == {key.encode(): 1 for key in keys}


def test_a_stalled_partition_holds_back_its_keys_alone(proxied):
    """Every key of one topic waits for its report; those of another flow."""
    other = proxied.topic + "-missing"
    proxied.insert(["k"] * 500, topic=other)
    proxied.insert([f"k{n % 200}" for n in range(4000)])
    with proxied.working(DELIVERY_TIMEOUT=3, SEND_BUFFER=50, KEY_BUFFER=20, DEFERRED_MAX=100):
        wait_until(lambda: proxied.count == 500, 30)
