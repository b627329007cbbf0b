"""The claim of a process on the table, as its rounds keep it: short sessions, lanes that come while others go."""

import threading
import time

import psycopg
import pytest

from outbox.edges.reader import Reader
from outbox.harvest.exactly_once_database import Database
from outbox.harvest.exactly_once_rounds import LaneState, Rounds
from tests.harvest.exactly_once.bench import wait_until
from tests.support.topics import create_topic

FRESH = "SELECT way_time > clock_timestamp() - interval '1 min' FROM outbox_state"


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


def rounds_of(bench, **settings):
    conf = bench.conf(**settings)
    return Rounds(conf, Database(conf, lambda: {"conninfo": bench.url}), NoLedger(), "me")


def test_a_lane_that_comes_while_the_last_one_goes_keeps_its_claim(bench):
    rounds = rounds_of(bench, NOTIFY=True)
    first, second = (LaneState(number, post=lambda order: None) for number in (0, 1))
    rounds._changed = Meanwhile()
    assert rounds.register(first)
    rounds.prepare()
    ear = rounds._ear

    def come():
        assert rounds.register(second)
        rounds.prepare()

    rounds._changed.then = come
    rounds.release_way(first, lambda: True)
    assert bench.db.execute(FRESH).fetchone() == (True,)
    assert rounds._ear is ear, "one is enough"
    rounds.leave(first)
    rounds.leave(second)
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
def test_a_held_backlog_is_not_fetched_again_and_goes_on_in_order(bench, monkeypatch, hold, sweep_s):
    """No sweep has to find what was passed over."""
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
        if sweep_s > 1:
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
