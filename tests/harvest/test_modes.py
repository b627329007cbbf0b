"""One mode at a time: whoever holds the table is not disturbed, and a switch loses nothing.

The same bench for both ways: a migrated table, a topic, workers without an election where that is not asked about.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import ExitStack, contextmanager

import psycopg
import pytest

from outbox.conf import AT_LEAST_ONCE, EXACTLY_ONCE
from outbox.core import lease
from outbox.edges.postgres.common.leases import OtherMode
from outbox.harvest import Harvester
from outbox.harvest.at_least_once.lane import AtLeastOnceFactory
from outbox.harvest.exactly_once.lane import ExactlyOnceFactory
from outbox.harvest.exactly_once.rounds.rounds import Rounds
from outbox.harvest.lease_keeper import LeaseKeeper
from outbox.harvest.once import NotElected, drain
from tests.cli import goharvest
from tests.harvest import hosts
from tests.harvest.exactly_once.bench import Bench, create_tables
from tests.harvest.hosts import finish, wait_until
from tests.harvest.processes import Harvest
from tests.support.checker import Writer, judge
from tests.support.databases import fresh_database
from tests.support.topics import create_topic

MODES = (EXACTLY_ONCE, AT_LEAST_ONCE)
PAIRS = [(one, other) for one in MODES for other in MODES if one != other]
WINDOW = 100
LIMITS = {"IN_FLIGHT_MAX": WINDOW, "MARK_MAX": 50, "BATCH_MAX": WINDOW}


@pytest.fixture
def bench(postgres, bootstrap_servers, monkeypatch):
    monkeypatch.setattr(lease, "BEAT_S", 0.5)
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        made = Bench(url, bootstrap_servers)
        yield made
        made.db.close()


@contextmanager
def working(bench, way, session_s=6, **given):
    """A trusted worker of the delivery mode, ended at once when the test has not finished it."""
    given = {**LIMITS, "DELIVERY": way, "SESSION_TIMEOUT": session_s, **given}
    if way == EXACTLY_ONCE:
        with bench.working(**given) as host:
            yield host
    else:
        conf = bench.conf(**given)
        with hosts.working(conf, connect=hosts.connector(bench.url, conf.harvest.statement_timeout_s)) as host:
            yield host


def delivers(host, count=1):
    wait_until(lambda: host.worker.statistics().delivered >= count)


def owner(bench):
    return bench.db.execute(
        "SELECT lease_mode, lease_time > clock_timestamp() - interval '6 s' FROM outbox_state"
    ).fetchone()


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_living_way_refuses_another_and_gives_way_when_it_has_finished(bench, one, other):
    bench.stash(["a"])
    with working(bench, one) as first:
        delivers(first)
        bench.db.execute("UPDATE outbox_state SET lease_time = clock_timestamp() - interval '9 s'")
        wait_until(lambda: owner(bench)[1])  # the heartbeat goes on
        with working(bench, other) as second:
            assert f"DELIVERY='{one}'" in str(wait_until(lambda: second.errors)[0])
        bench.stash(["b"])
        delivers(first, 2)
        assert not first.errors
        finish(first)
    bench.stash(["c"])
    with working(bench, other) as second:
        delivers(second)
    bench.check()


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_way_that_was_taken_meanwhile_ends_with_the_name_of_the_other(bench, one, other):
    """As after a pause that outlasted the lease."""
    bench.stash(["a"])
    with working(bench, one) as host:
        delivers(host)
        bench.db.execute("UPDATE outbox_state SET lease_mode = %s, lease_owner = 'else', lease_time = now()", [other])
        assert f"'else' harvests the table 'outbox' with DELIVERY='{other}'" in str(wait_until(lambda: host.errors)[0])


@pytest.mark.parametrize("way", MODES)
def test_nothing_is_sent_when_the_claim_could_not_be_repeated_in_time(bench, way):
    with working(bench, way, session_s=2, HEARTBEAT_TIMEOUT=0.6) as host:
        bench.stash(["a"])
        delivers(host)
        # The table has no such column for a while: every heartbeat fails, all else would work.
        bench.db.execute("ALTER TABLE outbox_state RENAME lease_time TO hidden")
        time.sleep(2.5)
        bench.stash(["b"])
        time.sleep(0.5)
        assert bench.count == 1
        bench.db.execute("ALTER TABLE outbox_state RENAME hidden TO lease_time")
        bench.wait_empty()


@pytest.mark.parametrize("is_heeded", [True, False])
def test_a_new_connection_looks_at_the_claim_before_it_reads(bench, monkeypatch, is_heeded):
    """After an outage of PostgreSQL, in which the lease may have gone to another mode, and before the next heartbeat.
    The control reads first."""
    monkeypatch.setattr(lease, "BEAT_S", 600)
    bench.stash(["a"])
    with working(bench, EXACTLY_ONCE, session_s=1200, HEARTBEAT_TIMEOUT=400) as host:
        delivers(host)
        bench.wait_empty()
        if not is_heeded:
            monkeypatch.setattr(LeaseKeeper, "take", lambda *given: None)
        bench.db.execute(
            "UPDATE outbox_state SET lease_mode = 'at-least-once', lease_owner = 'else', lease_time = now()"
        )
        bench.db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'outbox read'"
        )
        bench.stash(["b"])
        if is_heeded:
            assert "'else' harvests the table" in str(wait_until(lambda: host.errors)[0])
        else:
            bench.wait_empty()
    assert bench.count == is_heeded


def test_several_lanes_that_leave_at_once_release_the_claim(bench, monkeypatch):
    """Each sees the others still there: the last one that has purged what it sent releases for all."""
    released, leave = threading.Barrier(2), Rounds.leave

    def leave_together(rounds, lane, **given):
        released.wait(30)
        leave(rounds, lane, **given)

    monkeypatch.setattr(Rounds, "leave", leave_together)
    factory = ExactlyOnceFactory(source=lambda: {"conninfo": bench.url})
    with ExitStack() as stack:
        made = [
            stack.enter_context(working(bench, EXACTLY_ONCE, LANES=2, lane=lane, factory=factory)) for lane in range(2)
        ]
        for host in made:
            wait_until(lambda host=host: host.worker.statistics().takeovers)
        assert owner(bench) == (EXACTLY_ONCE, True)
        for host in made:
            host.worker.finish(time.monotonic() + 20)
        for host in made:
            assert host.ended.wait(30)
        assert owner(bench) == (EXACTLY_ONCE, False)


def test_lanes_of_one_process_repeat_one_claim(bench):
    factory, count = AtLeastOnceFactory(owner="me"), 3
    conf = bench.conf(**LIMITS, DELIVERY=AT_LEAST_ONCE, LANES=count)
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(
            "outbox.edges.postgres.common.table.parameters", lambda alias: {"conninfo": bench.url}
        )
        made = []
        for lane in range(count):
            host = hosts.Host()
            host.worker = factory(conf, lane, uuid.uuid4(), 1, host)
            host.worker.start()
            stack.callback(host.worker.join, 10)
            stack.callback(host.worker.abandon)
            made.append(host)
        bench.stash([f"k{n}" for n in range(30)])
        bench.wait_empty()
        wait_until(
            lambda: (
                bench.db.execute("SELECT lane FROM outbox_lane WHERE owner_name = 'me'").fetchall()
                == [(0,), (1,), (2,)]
            )
        )
        for host in made:
            assert owner(bench) == (AT_LEAST_ONCE, True)
            finish(host)
        assert owner(bench) == (AT_LEAST_ONCE, False)


# ---- harvesters


@contextmanager
def harvester(bench, way, **given):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("outbox.edges.postgres.common.table.parameters", lambda alias: {"conninfo": bench.url})
        made = Harvester(bench.conf(**LIMITS, DELIVERY=way, **given), fail_fast=given.pop("fail_fast", False))
        try:
            yield made.start()
        finally:
            made.stop()
            made._stopped.wait(30)


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_harvester_waits_for_another_way_to_end(bench, caplog, one, other):
    caplog.set_level("INFO", "outbox")
    bench.stash(["a"])
    with working(bench, one) as host:
        delivers(host)
        with harvester(bench, other) as waiting:
            wait_until(lambda: "waiting reason=" in caplog.text)
            assert f"with DELIVERY='{one}'" in caplog.text
            bench.stash(["b"])
            delivers(host, 2)
            assert not waiting.leader_ids
            finish(host)
            bench.stash(["c"])
            bench.wait_empty()
            assert "waiting_over" in caplog.text
    bench.check()


def test_a_drain_that_may_not_begin_names_the_other_way(bench):
    bench.db.execute(
        "INSERT INTO outbox_state (lanes, lease_mode, lease_owner, lease_time) "
        "VALUES (1, 'at-least-once', 'web1', 'infinity')"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("outbox.edges.postgres.common.table.parameters", lambda alias: {"conninfo": bench.url})
        with pytest.raises(NotElected, match=r"within 4 s\. 'web1' harvests the table 'outbox'"):
            drain(Harvester(bench.conf(**LIMITS)), 4)  # it must have asked PostgreSQL to know the reason


# ---- switching


def repeated(received):
    return len(received) - len({(message.key, message.value) for message in received})


def test_switching_to_and_fro_in_good_order_doubles_nothing(bench):
    with Writer(bench.url, bench.topic, keys=50, rate=1000) as writer:
        for way in (*MODES, *MODES):
            with working(bench, way) as host:
                delivers(host, 300)
                finish(host)
    with working(bench, EXACTLY_ONCE):
        bench.wait_empty()
    judge([writer.log], bench.read()).assert_kept(repeats_max=0)


def test_what_a_killed_at_least_once_owner_had_in_flight_goes_out_once_more(bench):
    """Its marks mean nothing to exactly-once delivery."""
    log = Writer(bench.url, bench.topic, keys=50).write(100)
    with working(bench, AT_LEAST_ONCE) as host:
        delivers(host, 200)
    assert bench.db.execute("SELECT count(*) FROM outbox WHERE leader_id IS NOT NULL").fetchone() != (0,)
    with working(bench, EXACTLY_ONCE, session_s=60) as host:  # for which the dead owner's lease is surely fresh
        assert isinstance(wait_until(lambda: host.errors)[0], OtherMode)
    bench.db.execute("UPDATE outbox_state SET lease_time = lease_time - interval '6 s'")
    with working(bench, EXACTLY_ONCE):
        bench.wait_empty()
    received = bench.read()
    judge([log], received).assert_kept()
    assert repeated(received) <= WINDOW


def test_a_batch_committed_by_a_killed_exactly_once_owner_goes_out_once_more_at_least_once(bench):
    log = Writer(bench.url, bench.topic, keys=50).write(100)
    process = bench.spawn("after-commit=kill@3", BATCH_MAX=WINDOW)
    assert process.wait(60) == -signal.SIGKILL
    bench.db.execute(
        "UPDATE outbox_state SET lease_time = lease_time - interval '26 s'"
    )  # its transactions have ended too
    with working(bench, AT_LEAST_ONCE) as host:
        bench.wait_empty()
        finish(host)
    received = bench.read()
    judge([log], received).assert_kept(regressions_max=WINDOW)
    assert repeated(received) == WINDOW
    log = Writer(bench.url, bench.topic, keys=50).write(10)
    with working(bench, EXACTLY_ONCE):  # whose last batch was purged by somebody else: only the number moves
        bench.wait_empty()
    assert repeated(bench.read()) == WINDOW


def test_exactly_once_goes_on_where_a_fleet_of_goharvest_harvesters_was_stopped(bench):
    """They know nothing of the state row: that all of them have ended is the operator's to see."""
    group = f"fleet-{uuid.uuid4().hex[:8]}"
    create_topic(bench.servers, 1, f"{group}.neli")
    topic = create_topic(bench.servers, 1)  # theirs is another partitioner
    with Writer(bench.url, topic, keys=20, rate=500) as writer:
        fleet = [
            subprocess.Popen(
                [sys.executable, goharvest.__file__, bench.servers, bench.url, group, f"goharvest-{number}"]
            )
            for number in range(2)
        ]
        try:
            wait_until(lambda: bench.db.execute("SELECT min(id) > 100 FROM outbox").fetchone()[0], 60)
        finally:
            for process in fleet:
                process.kill()
                process.wait()
        with working(bench, EXACTLY_ONCE) as host:
            delivers(host, 100)
    with working(bench, EXACTLY_ONCE):
        bench.wait_empty()
    judge([writer.log], bench.read(topic)).assert_kept(repeats_max=1)  # which was sent and not yet deleted


@pytest.mark.parametrize("delivery", MODES)
def test_of_two_names_started_together_one_is_refused_by_name_and_nothing_is_sent_twice(bench, tmp_path, delivery):
    """Each would elect an owner, and both would send every record."""
    records = 20_000
    bench.stash([f"key-{n % 100}" for n in range(records)])
    given = {"OUTBOX_DELIVERY": delivery, "OUTBOX_SESSION_TIMEOUT": "30"}
    names = [f"{bench.name}.web", f"{bench.name}.worker"]
    both = [Harvest(tmp_path, bench.url, **given, OUTBOX_NAME=name) for name in names]
    try:
        bench.wait_empty()
        [refused] = wait_until(lambda: [one for one in both if "This process has NAME=" in one.log])
        [at_work] = [one for one in both if one is not refused]
        assert f"This process has NAME='{names[both.index(refused)]}'" in refused.log
        assert f"with NAME='{names[both.index(at_work)]}'" in refused.log
        assert "Give every process of this table the same NAME" in refused.log
        assert at_work.process.poll() is None, "the one at work is not disturbed"
        refused.process.send_signal(signal.SIGTERM)
        assert refused.process.wait(60) in (0, 1)
        at_work.ends(0)
    finally:
        for process in both:
            process.discard()
    values = [record.value for record in bench.read()]
    assert len(values) == len(set(values)) == records


def test_a_second_environment_of_one_name_ends_with_both_databases(bench, tmp_path):
    """The first one has the lane, and the second one would wait for it for ever."""
    with fresh_database(os.environ["DATABASE_URL"]) as elsewhere, ExitStack() as stack:
        with psycopg.connect(elsewhere, autocommit=True) as other:
            create_tables(other)
            ours = other.execute("INSERT INTO outbox_state (lanes) VALUES (1) RETURNING database").fetchone()[0]
        first = Harvest(tmp_path, bench.url, OUTBOX_NAME=bench.name).leads()
        stack.callback(first.discard)
        theirs = bench.db.execute("SELECT database FROM outbox_state").fetchone()[0]
        second = Harvest(tmp_path, elsewhere, OUTBOX_NAME=bench.name, OUTBOX_DELIVERY=AT_LEAST_ONCE)
        stack.callback(second.discard)
        second.ends(1, send=None)
        assert re.search(
            f"harvester_failed .*harvests database {theirs}, and this process harvests database {ours}", second.log
        )
        assert "partitions_assigned" not in second.log
        first.ends(0)
        assert "leader_fenced" not in first.log
