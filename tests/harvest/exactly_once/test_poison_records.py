"""A record that natively kills every process that sends it is found, held, and everything else arrives."""

import signal
import time
from functools import partial

import psycopg
import pytest

from outbox.core.holds.crashes import Care
from outbox.core.holds.values import rejected
from outbox.edges.postgres.holds import HoldTable
from outbox.harvest.exactly_once.rounds.rounds import Rounds
from outbox.harvest.exactly_once.transaction import Transactions
from outbox.operations import actions
from tests.harvest.exactly_once.bench import finish, wait_until
from tests.support.databases import leading

pytestmark = pytest.mark.slow  # as a file
CONFIRMED = "SELECT confirmed_by FROM outbox_hold"
HOLDS = "SELECT record_id, reason FROM outbox_hold ORDER BY id"
LOCKS = (
    "SELECT count(*) FROM pg_locks JOIN pg_database AS d ON d.oid = database "
    "WHERE locktype = 'advisory' AND datname = current_database()"
)
STARTS_MAX = 3 + 3 + 1  # without counts, then 8 records and halves of them, at last twice alone


def holds(bench):
    return bench.db.execute(HOLDS).fetchall()


def test_a_record_that_kills_its_process_natively_is_poison(bench):
    ids = bench.stash([f"k{n % 7}" for n in range(40)])
    [(cause, key, value)] = bench.db.execute("SELECT id, kafka_key, kafka_value FROM outbox WHERE id = %s", [ids[20]])
    waiting = len(ids[20::7])
    start = partial(bench.spawn, die_of=value, BATCH_MAX=8)
    deaths = 0
    while True:
        process = start()
        wait_until(lambda process=process: process.poll() is not None or holds(bench))
        if holds(bench):
            break
        assert process.returncode == -signal.SIGSEGV
        deaths += 1
        assert deaths < STARTS_MAX
        wait_until(lambda: bench.db.execute(LOCKS).fetchone() == (0,))  # else the next one takes it for a pause
    assert holds(bench) == [(cause, "poison")]
    process.kill()  # at once: what it has found must outlive it
    process.wait()
    successor = start()
    wait_until(lambda: bench.count == waiting)
    bench.stash(["k1"] * 3)
    wait_until(lambda: bench.count == waiting)
    assert (successor.poll(), holds(bench)) == (None, [(cause, "poison")])
    successor.kill()
    successor.wait()
    bench.db.execute("UPDATE outbox_hold SET wanted = 'retry'")
    cured = bench.spawn()
    bench.wait_empty()
    wait_until(lambda: holds(bench) == [])
    assert cured.poll() is None
    assert value in bench.by_key()[key]
    bench.check()


def test_what_was_rejected_is_poison_alone_and_rejected_again_when_it_is_refused(bench):
    """One hold per record: else lifting one would leave the other, and the key would wait for ever."""
    [id_] = bench.stash(["k"])
    table, hold = HoldTable("outbox"), rejected(id_, bench.topic, "k", 1, "MSG_SIZE_TOO_LARGE: too large", 1.0)
    table.write(bench.db, [hold], [])
    table.own(bench.db, 0, "me", Care(True, 2, (), id_))
    assert holds(bench) == [(id_, "poison")]
    bench.db.execute("UPDATE outbox_hold SET wanted = 'retry'")
    table.write(bench.db, [hold], [])
    assert holds(bench) == [(id_, "rejected")]


def test_a_careful_turn_is_not_waited_for_beyond_the_end_of_the_lane(bench):
    bench.db.execute("INSERT INTO outbox_watch (lane, owner, crashes) VALUES (0, 'somebody who died', 1)")
    with bench.working() as host:
        wait_until(lambda: host.worker.statistics().takeovers)
        turn = host.worker._rounds.careful_turn
        with turn:  # another lane of the process sends, and Kafka does not answer
            bench.stash(["k"] * 5)
            wait_until(lambda: host.worker.statistics().phase == "sending")
            finish(host)
            assert host.worker.join(15)
        assert bench.count == 5
    with bench.working():
        bench.wait_empty()
    bench.check()


def test_a_slow_look_at_the_holds_does_not_stop_the_lanes(bench, monkeypatch):
    """Longer than the time for which what was seen is good."""
    load = HoldTable.load

    def slow(self, *arguments):
        time.sleep(1.1)
        return load(self, *arguments)

    monkeypatch.setattr(HoldTable, "load", slow)
    with bench.working():
        for _ in range(3):
            bench.stash(["k"] * 50)
            bench.wait_empty()
    bench.check()


def test_an_operator_s_lock_on_a_hold_stops_no_purge(bench, settings, django_db_blocker):
    settings.OUTBOX = {**settings.OUTBOX, "NAME": bench.name, "BOOTSTRAP_SERVERS": bench.servers}
    with leading(bench.url, django_db_blocker):
        actions.pause(topic="another", actor="ann")
    with psycopg.connect(bench.url) as operator:
        operator.execute("SELECT FROM outbox_hold FOR UPDATE")
        with bench.working(STATEMENT_TIMEOUT=120) as host:
            for _ in range(5):  # the pause is to be confirmed with each of them that is a second younger
                bench.stash(["k"] * 5)
                bench.wait_empty(30)
                time.sleep(0.5)
            assert bench.db.execute(CONFIRMED).fetchall() == [([],)]
            operator.rollback()
            wait_until(lambda: bench.db.execute(CONFIRMED).fetchall() == [([0],)])
            assert host.errors == []
    bench.check()


def test_nothing_is_committed_when_the_claim_has_run_out_meanwhile(bench, monkeypatch):
    """Between the read and the commit another delivery mode may have got the table."""
    wait, asked = Transactions._await_guards, []

    def run_out(self, batch, give_up_at):
        asked.append(self._rounds.holds_lease())
        with monkeypatch.context() as patch:
            patch.setattr(Rounds, "holds_lease", lambda rounds: len(asked) > 3)
            wait(self, batch, give_up_at)

    monkeypatch.setattr(Transactions, "_await_guards", run_out)
    with bench.working():
        bench.stash(["k"] * 5)
        bench.wait_empty()
    assert [entry.batch for entry in bench.entries()] == [1]
    assert len(asked) == 4
    bench.check()
