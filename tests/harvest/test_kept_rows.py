"""Rows that stay although they are deleted: found at the start where they can be, else counted after a purge. The lane
stops, says what keeps them, and resumes by itself when that is gone; nothing is sent twice."""

import os
from contextlib import contextmanager

import pytest

from outbox.conf import AT_LEAST_ONCE, EXACTLY_ONCE
from outbox.core.contract import LaneStopped, UncleanRelease
from outbox.edges.postgres.preflight.keepers import RowsKept
from outbox.harvest import Harvester
from outbox.harvest.exactly_once.lane import ExactlyOnceFactory
from outbox.harvest.exactly_once.rounds import database
from tests.harvest import hosts
from tests.harvest.exactly_once.bench import Bench, finish, stopped, wait_until
from tests.support.databases import fresh_database

FUNCTION = "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {} END $$;"
TRIGGER = "CREATE TRIGGER soft BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION keep()"
ALL = "UPDATE kept SET n = n + 1; RETURN NULL;"
SOME = "IF OLD.kafka_key = 'b' THEN RETURN NULL; END IF; RETURN OLD;"
RULE = "CREATE RULE soft AS ON DELETE TO outbox DO INSTEAD NOTHING"


@pytest.fixture
def bench(postgres, bootstrap_servers, monkeypatch):
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        made = Bench(url, bootstrap_servers)
        made.db.execute("CREATE TABLE kept (n int); INSERT INTO kept VALUES (0)")
        monkeypatch.setattr("outbox.edges.postgres.common.table.parameters", lambda alias: {"conninfo": url})
        monkeypatch.setattr("outbox.harvest.exactly_once.lane._STOPPED_S", 0.3)
        yield made
        made.close()


def refused(bench, way):
    with pytest.raises(RowsKept) as caught:
        Harvester(bench.conf(DELIVERY=way)).start().wait(30)
    return str(caught.value)


@pytest.mark.parametrize(
    ("way", "made", "told"),
    [
        (EXACTLY_ONCE, FUNCTION.format(ALL) + TRIGGER, "the trigger 'soft' skips each DELETE: let it return OLD"),
        (AT_LEAST_ONCE, RULE, "the rule 'soft' acts on each DELETE: DROP RULE"),
    ],
    ids=["trigger", "rule"],
)
def test_what_keeps_every_row_ends_the_start(bench, way, made, told):
    bench.db.execute(made)
    bench.stash(["a"])
    assert told in refused(bench, way)
    assert bench.read() == []


def test_a_trigger_that_may_keep_rows_is_a_warning(bench, caplog):
    bench.db.execute(FUNCTION.format(SOME) + TRIGGER)
    bench.stash(["a"])
    with Harvester(bench.conf()):
        bench.wait_empty()
    assert caplog.text.count("table_warning table=outbox reason=\"the trigger 'soft' may skip a DELETE") == 1


@contextmanager
def working(bench, way, **settings):
    if way == EXACTLY_ONCE:
        with bench.working() as host:
            yield host
    else:
        conf = bench.conf(DELIVERY=way, SESSION_TIMEOUT=60, SWEEP_INTERVAL=0.2, **settings)
        with hosts.working(conf, connect=hosts.connector(bench.url)) as host:
            yield host


@pytest.mark.parametrize(("way", "body"), [(EXACTLY_ONCE, SOME), (EXACTLY_ONCE, ALL), (AT_LEAST_ONCE, SOME)])
def test_rows_that_survive_stop_the_lane_until_they_may_go(bench, way, body):
    """They are kept since the lane works: nobody could see it at the start."""
    with working(bench, way) as host:
        bench.stash(["a"])
        bench.wait_empty()
        bench.db.execute(FUNCTION.format(body) + TRIGGER)
        bench.stash(["a", "b", "c"])
        text = stopped(host)
        assert "survived their DELETE: the trigger 'soft'" in text
        assert "resumes by itself" in text
        bench.stash(["c", "d"])
        before = len(bench.read())
        host.events.clear()
        wait_until(lambda: host.worker.statistics().phase == "stopped")
        assert len(bench.read()) == before == 4, "nothing more is sent"
        bench.db.execute("DROP TRIGGER soft ON outbox")
        bench.wait_empty()
    bench.check()


def test_rows_that_survive_are_deleted_also_when_the_lane_has_begun_again_meanwhile(bench):
    """As it does for a pause, or after an outage: what was to be deleted is found anew."""
    with working(bench, AT_LEAST_ONCE, DRAIN_TIMEOUT=0.5) as host:
        bench.stash(["a"])
        bench.wait_empty()
        bench.db.execute(FUNCTION.format(SOME) + TRIGGER)
        bench.stash(["a", "b", "c"])
        stopped(host)
        bench.db.execute("INSERT INTO outbox_hold (topic, reason) VALUES ('another', 'paused')")
        wait_until(lambda: host.refreshes)
        bench.db.execute("DROP TRIGGER soft ON outbox")
        bench.wait_empty(20)
    bench.check()


def test_a_lane_that_ends_while_its_rows_survive_has_not_ended_in_good_order(bench):
    """Another delivery mode would send them again."""
    with working(bench, EXACTLY_ONCE) as host:
        bench.stash(["a"])
        bench.wait_empty()
        bench.db.execute(FUNCTION.format(SOME) + TRIGGER)
        bench.stash(["b"])
        stopped(host)
        finish(host)
        assert host.of(UncleanRelease)
    assert bench.db.execute("SELECT isfinite(lease_time) FROM outbox_state").fetchone() == (True,), "it was released"


def test_without_the_count_rows_that_survive_are_sent_again(bench, monkeypatch):
    monkeypatch.setattr(database, "_refuse_kept", lambda *given: None)
    bench.db.execute(FUNCTION.format(ALL) + TRIGGER)
    with bench.working(SWEEP_INTERVAL=0.2):
        bench.stash(["a"])
        wait_until(lambda: len(bench.read()) > 1)


def test_a_lane_beside_one_that_keeps_its_rows_goes_on(bench):
    factory = ExactlyOnceFactory(source=lambda: {"conninfo": bench.url})
    lane = "(hashtextextended({}, 0) & 9223372036854775807) % 2"
    with (
        bench.working(LANES=2, lane=0, factory=factory) as first,
        bench.working(LANES=2, lane=1, factory=factory) as second,
    ):
        for host in (first, second):
            wait_until(lambda host=host: host.worker.statistics().takeovers)
        bench.db.execute(
            FUNCTION.format(f"IF {lane.format('OLD.kafka_key')} = 1 THEN RETURN NULL; END IF; RETURN OLD;")
        )
        bench.db.execute(TRIGGER)
        keys = [f"k{n}" for n in range(20)]
        bench.stash(keys)
        assert "survived their DELETE" in stopped(second)
        bench.stash(keys)
        mine = f"SELECT count(*) FROM outbox WHERE {lane.format('kafka_key')} = 0"
        wait_until(lambda: bench.db.execute(mine).fetchone() == (0,))
        assert not first.of(LaneStopped)
        bench.db.execute("DROP TRIGGER soft ON outbox")
        bench.wait_empty()
    bench.check()


def test_rows_that_somebody_else_deletes_stop_nothing(bench, caplog, monkeypatch):
    failpoint = database.failpoint

    def delete(name):
        failpoint(name)
        if name == "before-purge":
            bench.db.execute("DELETE FROM outbox WHERE kafka_key <> 'a'")

    monkeypatch.setattr(database, "failpoint", delete)
    with bench.working() as host:
        for keys in (["a", "b"], ["b"], ["a"]):
            bench.stash(keys)
            bench.wait_empty()
        finish(host)
    assert caplog.text.count("something else deletes records") == 1
    assert "lane_stopped" not in caplog.text
    bench.check()
