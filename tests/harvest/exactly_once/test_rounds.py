"""The lease of a process on the table, as its rounds keep it: short sessions, lanes that come while others go."""

import threading
import time

import psycopg
import pytest

from outbox.core.exactly_once.decisions import StateRow
from outbox.edges.kafka.exactly_once.transactional import ReportsMissing, TransactionalProducer
from outbox.edges.postgres.exactly_once.reader import Reader
from outbox.harvest.exactly_once.ports import Servers
from outbox.harvest.exactly_once.rounds.database import Database
from outbox.harvest.exactly_once.rounds.lanes import LaneState
from outbox.harvest.exactly_once.rounds.rounds import Rounds
from outbox.runtime.threads import THREADS
from tests.harvest.exactly_once.bench import wait_until
from tests.support.topics import create_topic

FRESH = "SELECT lease_time > clock_timestamp() - interval '1 min' FROM outbox_state"


class NoLedger:
    def prepare(self, *given):
        pass

    def close(self):
        pass


class Meanwhile(threading.Condition):
    """Runs something as soon as its lock was left, once."""

    then = None

    def __exit__(self, *given):
        super().__exit__(*given)
        then, self.then = self.then, None
        if then is not None:
            then()


def rounds_of(bench, unsettled=None, **settings):
    conf = bench.conf(**settings)
    servers = Servers(THREADS, Database(conf, lambda: {"conninfo": bench.url}), NoLedger())
    return Rounds(conf, servers, "me", unsettled)


def test_a_lane_that_comes_while_the_last_one_goes_keeps_its_claim(bench):
    rounds = rounds_of(bench, NOTIFY=True)
    first, second = (LaneState(number, post=lambda order: None) for number in (0, 1))
    rounds._lanes.changed = Meanwhile()
    assert rounds.register(first)
    rounds.prepare()
    ear = rounds._ear

    def come():
        assert rounds.register(second)
        rounds.prepare()

    rounds._lanes.changed.then = come
    rounds.release_lease(first, lambda: True)
    assert bench.db.execute(FRESH).fetchone() == (True,)
    assert rounds._ear is ear, "one is enough"
    rounds.leave(first, is_settled=True)
    rounds.leave(second, is_settled=True)
    assert rounds.join(20)


@pytest.mark.parametrize("is_settled", [True, False])
def test_a_claim_is_kept_while_a_lane_that_left_before_is_not_settled(bench, is_settled):
    """Also by the rounds that follow in this process."""
    unsettled = set()
    for number, settled in ((0, is_settled), (1, True)):
        rounds, lane = rounds_of(bench, unsettled), LaneState(number, post=lambda order: None)
        assert rounds.register(lane)
        rounds.prepare()
        if number:
            rounds.release_lease(lane, lambda: True)
        rounds.leave(lane, is_settled=settled)
        assert rounds.join(20)
    assert bench.db.execute(FRESH).fetchone() == (not is_settled,)


def test_a_lane_that_is_taken_over_again_is_settled(bench):
    rounds = rounds_of(bench)
    earlier, lane = (LaneState(0, post=lambda order: None) for _ in range(2))
    assert rounds.register(earlier)
    assert rounds.register(lane)
    assert rounds._lanes.unsettled == {0}, "the worker before may still be committing"
    rounds.ready(lane, 0, StateRow(1), "")
    rounds.leave(earlier, is_settled=False)
    assert rounds._lanes.unsettled == set()
    rounds.leave(lane, is_settled=True)
    assert rounds.join(20)


def test_a_worker_whose_thread_begins_late_does_not_replace_its_successor(bench):
    rounds = rounds_of(bench)
    earlier, lane = (LaneState(0, post=lambda order: None) for _ in range(2))
    assert rounds.register(lane)
    assert rounds.register(earlier)
    rounds.leave(earlier, is_settled=True)
    assert not rounds.is_closing
    rounds.leave(lane, is_settled=True)
    assert rounds.join(20)


def test_the_shortest_session_goes_on_after_its_claim_became_old(bench):
    """Here it is fresh for 0.75 s, less than anybody would wait for a look of its own."""
    bench.stash(["a"])
    with bench.working(SESSION_TIMEOUT=1, HEARTBEAT_TIMEOUT=0.5):
        bench.wait_empty()
        with psycopg.connect(bench.url) as other:
            other.execute("SELECT FROM outbox_state FOR UPDATE")  # no heartbeat gets through
            time.sleep(1.2)
        bench.stash(["b"])
        bench.wait_empty(30)
    bench.check()


@pytest.mark.parametrize(("hold", "sweep_s"), [("topic", 0.2), ("topic", 3600), ("lane", 0.2), ("lane", 3600)])
def test_a_held_backlog_is_not_fetched_again_and_goes_on_in_order(undisturbed, monkeypatch, hold, sweep_s):
    """No sweep has to find what was passed over."""
    bench = undisturbed
    fetched, looks = [], []
    read = Reader.read

    def noted(self, connection, look, *given):
        page = read(self, connection, look, *given)
        looks.append(look)
        fetched.append([row[0] for row in page.rows])
        return page

    monkeypatch.setattr(Reader, "read", noted)
    with bench.working(SWEEP_INTERVAL=sweep_s) as host:
        given = ("lane", "0") if hold == "lane" else ("topic", f"'{bench.topic}'")
        bench.db.execute(f"INSERT INTO outbox_hold ({given[0]}, reason) VALUES ({given[1]}, 'paused')")
        confirmed = "SELECT 1 FROM outbox_hold WHERE confirmed_by = '{0}'"
        wait_until(lambda: bench.db.execute(confirmed).fetchone())
        fetched.clear()
        bench.stash(["a", "b", ""] * 100)
        with psycopg.connect(bench.url) as late:
            bench.stash(["a"], connection=late)
            bench.stash(["a", "c"])
            seen = host.worker._rounds.reads
            wait_until(lambda: host.worker._rounds.reads > seen + 20)
        wait_until(lambda: host.worker._rounds.reads > seen + 30)
        assert bench.count == 303
        assert not any(fetched), "rows that are held were sent by the server"
        assert looks[-1] == 303, "rows that are held are walked again by every poll"
        if hold == "topic":  # others go by, and the reading starts behind them
            bench.stash(["x"], topic=create_topic(bench.servers))
            wait_until(lambda: bench.count == 303)
        bench.db.execute("DELETE FROM outbox_hold")
        bench.wait_empty()
    found = bench.by_key()
    assert {key: len(values) for key, values in found.items()} == {"a": 102, "b": 100, "c": 1, "": 100}
    assert found["b"] == sorted(found["b"], key=int)
    assert found["a"] == sorted(found["a"], key=int), "also what became visible late"


def test_where_the_server_cannot_pass_over_a_backlog_it_is_fetched(bench, monkeypatch):
    """In one statement, that is: there it took longer than a statement may."""
    read, passed = Reader.read, []

    def slow(self, connection, look, lanes, excluded, limit, bytes_max, left_out):
        if left_out:
            passed.append(left_out)
            connection.execute("SET statement_timeout = 1")
            connection.execute("SELECT pg_sleep(1)")
        return read(self, connection, look, lanes, excluded, limit, bytes_max, left_out)

    monkeypatch.setattr(Reader, "read", slow)
    bench.db.execute("INSERT INTO outbox_hold (topic, reason) VALUES ('paused', 'paused')")
    bench.stash(["a"], topic="paused")
    bench.stash(["b"] * 10)
    with bench.working():
        wait_until(lambda: bench.count == 1)
        assert len(passed) == 1


def test_a_read_that_takes_longer_than_a_statement_may_is_given_more_time(bench, monkeypatch):
    """As beside a pinned horizon, where the first read walks over everything that is dead: it would fail for ever. The
    lease is repeated meanwhile."""
    read, seen, held, walked = Reader.read, [], [], []

    def slow(self, connection, *given):
        seen.append(connection.info.backend_pid)
        if not walked:
            connection.execute("SELECT pg_sleep(1.2)")
            walked.append(len(seen))
        return read(self, connection, *given)

    monkeypatch.setattr(Reader, "read", slow)
    bench.stash(["a"] * 10)
    with bench.working(STATEMENT_TIMEOUT=0.5, SESSION_TIMEOUT=1, HEARTBEAT_TIMEOUT=0.5) as host:
        wait_until(lambda: seen)
        while bench.count:
            held.append(host.worker._rounds.holds_lease())
            time.sleep(0.05)
            assert len(seen) < 50
        timeout = host.worker._rounds._reader._reading._connection.execute("SHOW statement_timeout").fetchone()[0]
    bench.check()
    assert walked == [3], "the time was doubled twice"
    assert len(set(seen[:3])) == 1, "what was refused for want of time leaves the connection as it was"
    assert timeout == "500ms"
    assert held.count(False) < len(held) / 4


def test_what_the_sweep_finds_is_sent_and_what_is_held_is_not_found_again(bench, monkeypatch):
    """One block after the other, on a connection of its own: the reading begins no lower than what was missed."""
    looks, read = [], Reader.read

    def noted(self, connection, look, *given):
        looks.append(look)
        return read(self, connection, look, *given)

    monkeypatch.setattr(Reader, "read", noted)
    bench.db.execute("SELECT setval('outbox_id_seq', 1000)")
    bench.stash(["held"] * 100)
    bench.stash(["b"] * 300, size=900)
    held = "SELECT id, kafka_topic, kafka_key, 'paused' FROM outbox WHERE kafka_key = 'held' LIMIT 1"
    bench.db.execute(f"INSERT INTO outbox_hold (record_id, topic, key, reason) {held}")
    with bench.working(SWEEP_INTERVAL=0.2) as host:
        wait_until(lambda: bench.count == 100)
        rounds = host.worker._rounds
        passes = rounds._reader._sweep.passes
        wait_until(lambda: rounds._reader._sweep.passes > passes + 3)
        looks.clear()
        wait_until(lambda: rounds._reader._sweep.passes > passes + 6)
        assert min(looks) == 1400, "records that are held are found for ever"
        bench.db.execute(
            "INSERT INTO outbox (id, kafka_topic, kafka_key, kafka_value) VALUES (77, %s, 'low', 'by hand'), "
            "(78, %s, 'held', 'by hand too')",
            [bench.topic, bench.topic],
        )
        wait_until(lambda: bench.count == 101)
        assert min(looks) == 76, "never from the beginning"
        bench.db.execute("DELETE FROM outbox_hold")
        bench.wait_empty()
    assert bench.by_key()["low"] == ["by hand"]
    assert len(bench.by_key()["held"]) == 101


def test_a_full_page_of_held_records_that_leads_nowhere_is_not_read_without_a_pause(bench):
    """Ids above the sequence, as after a COPY without setval, do not lift the frontier."""
    bench.stash(["a"] * 5)
    with bench.working(BATCH_MAX=20) as host:
        bench.wait_empty()
        bench.db.execute(
            "INSERT INTO outbox_hold (topic, key, reason) VALUES (%s, 'held', 'paused')",
            [bench.topic],
        )
        wait_until(lambda: bench.db.execute("SELECT 1 FROM outbox_hold WHERE confirmed_by = '{0}'").fetchone())
        bench.db.execute(
            "INSERT INTO outbox (id, kafka_topic, kafka_key) SELECT n, %s, 'held' FROM generate_series(1001, 1100) n",
            [bench.topic],
        )
        time.sleep(1)
        before, begun = host.worker._rounds.reads, time.monotonic()
        time.sleep(1)
        assert host.worker._rounds.reads - before <= 25 * (time.monotonic() - begun)
        bench.db.execute("DELETE FROM outbox_hold")
        bench.wait_empty()


def test_brokers_that_take_few_records_in_a_transaction_s_time_get_few(bench, monkeypatch):
    """The same page would be sent and given up for ever."""
    send, wait, sent = TransactionalProducer.send, TransactionalProducer.wait_reports, []

    def noted(self, rows, *given):
        sent.append(len(rows))
        send(self, rows, *given)

    def slow(self, is_over):
        if sent[-1] > 10:
            raise ReportsMissing("the link is slow")
        wait(self, is_over)

    monkeypatch.setattr(TransactionalProducer, "send", noted)
    monkeypatch.setattr(TransactionalProducer, "wait_reports", slow)
    bench.stash(["a", "b"] * 50)
    with bench.working(BATCH_MAX=100):
        bench.wait_empty()
    bench.check()
    assert max(sent) == 100


def is_free(lock):
    if is_mine := lock.acquire(blocking=False):
        lock.release()
    return is_mine


def test_a_lane_that_keeps_the_turn_to_send_holds_up_no_other(bench):
    with bench.working() as host:
        wait_until(lambda: host.worker.statistics().takeovers)
        turn = host.worker._rounds.sending_turn
        with turn:  # another lane of the process sends, and the client does not take its records
            bench.stash(["k"] * 5)
            bench.wait_empty()
        assert is_free(turn)
        bench.stash(["k"] * 5)
        bench.wait_empty()
        assert is_free(turn)
    bench.check()
