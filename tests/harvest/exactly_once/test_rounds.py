"""The claim of a process on the table, as its rounds keep it: short sessions, lanes that come while others go."""

import threading
import time

import psycopg

from outbox.harvest.exactly_once_database import Database
from outbox.harvest.exactly_once_rounds import LaneState, Rounds

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
