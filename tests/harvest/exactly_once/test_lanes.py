"""Changing the lane count under load: exactly once, in order, through a crash at every step."""

import contextlib
import itertools
import json
import os
import signal
import time

import pytest
from confluent_kafka import KafkaError, KafkaException

from outbox.core.contract import UncleanRelease
from outbox.core.exactly_once import decisions
from outbox.core.exactly_once.resolution import Resolution
from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer
from outbox.harvest.exactly_once import resize
from outbox.harvest.exactly_once.lane import ExactlyOnceFactory
from outbox.harvest.exactly_once.resolve import Resolver
from tests.faults.fleet import Fleet
from tests.harvest.exactly_once.bench import stopped, wait_until
from tests.harvest.exactly_once.test_harvester import harvester
from tests.harvest.exactly_once.test_kills import _is_stopped as is_stopped
from tests.harvest.exactly_once.test_kills import wait_killed
from tests.harvest.hosts import Host
from tests.support.databases import django
from tests.support.topics import create_topic

# The waits inside of one test may together take longer than a test may otherwise.
pytestmark = pytest.mark.timeout(420)

TIMES = {"HEARTBEAT_TIMEOUT": 2, "SESSION_TIMEOUT": 6}


def request(bench, lanes):
    bench.db.execute("UPDATE outbox_state SET lanes_wanted = %s", [lanes])


def lanes_of(bench):
    """The count, when nothing is under way."""
    row = bench.db.execute("SELECT lanes, lanes_wanted, resize_to FROM outbox_state").fetchone()
    return row[0] if row and row[1:] == (None, None) else None


def command(bench, *arguments, **settings):
    return django(
        "outbox_lanes",
        *map(str, arguments),
        url=bench.url,
        OUTBOX_DELIVERY="exactly-once",
        OUTBOX_NAME=bench.name,
        OUTBOX_BOOTSTRAP_SERVERS=bench.servers,
        **settings,
    )


@contextlib.contextmanager
def working_lanes(bench, lanes, **settings):
    """Workers of several lanes in this process."""
    factory = ExactlyOnceFactory(source=lambda: {"conninfo": bench.url})
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(bench.working(lane=lane, factory=factory, **settings)) for lane in lanes]


def test_killed_at_every_step_of_a_change_and_its_successor_goes_on(bench):
    bench.stash([f"key-{n % 20}" for n in range(500)])
    with bench.writing(writers=2):
        with working_lanes(bench, [0, 1], LANES=2):
            wait_until(lambda: lanes_of(bench) == 2 and len(bench.read()) > 300, 60)
        request(bench, 4)
        for point in (
            "lanes-grown=kill",
            "lanes-closed=kill",
            "lane-settled=kill@1",
            "change-marked=kill",
            "lanes-opened=kill",
        ):
            wait_killed(bench.spawn(point, lanes=4, LANES=2))
        assert lanes_of(bench) == 4
        request(bench, 3)
        wait_killed(bench.spawn("lane-settled=kill@3", lanes=4))
        with working_lanes(bench, range(4)) as hosts:
            wait_until(lambda: lanes_of(bench) == 3, 60)
            before = bench.stashed.count
            wait_until(lambda: bench.stashed.count > before + 200, 60)
            wait_until(lambda: hosts[3].worker.statistics().phase == "idle", 60)
    with working_lanes(bench, range(3)):
        bench.wait_empty(60)
    bench.check()


@pytest.mark.parametrize("is_settled", [True, False])
def test_an_owner_that_sleeps_through_the_change_is_fenced(bench, monkeypatch, is_settled):
    """The control leaves out to fence the old lanes: what the sleeper had in flight goes out twice."""
    bench.stash([f"key-{n}" for n in range(40)])
    if not is_settled:
        monkeypatch.setattr(resize.LaneCount, "_settle", lambda *_: 0)
    with working_lanes(bench, [0], LANES=2):
        sleeper = bench.spawn("before-commit=stop@1", lanes=[1], LANES=2)
        try:
            wait_until(lambda: is_stopped(sleeper.pid), 60)
            with working_lanes(bench, [2]):
                request(bench, 3)
                wait_until(lambda: lanes_of(bench) == 3, 60)
                batches = "SELECT coalesce(max(batch), 0) FROM outbox_purged WHERE lane = 2"
                wait_until(lambda: bench.db.execute(batches).fetchone() > (0,))
                os.kill(sleeper.pid, signal.SIGCONT)
                if is_settled:
                    bench.wait_empty()
                else:
                    wait_until(lambda: len(bench.read()) > 40)
        finally:
            sleeper.kill()
            sleeper.wait()
    if is_settled:
        bench.check()


@pytest.mark.parametrize("is_settled", [True, False])
def test_a_lane_that_a_shrink_has_settled_leaves_in_good_order(bench, monkeypatch, is_settled):
    """Also in doubt about its last commit: the change has found out. The control is stopped before any change."""

    really_commit = TransactionalProducer.commit

    def commit(self, *arguments):
        if self is not host.worker._transactions.producer:
            return really_commit(self, *arguments)
        host.trusted = False  # so that it cannot find out by itself
        raise KafkaException(KafkaError(KafkaError._FENCED))

    host = Host()
    with working_lanes(bench, [0], LANES=2):
        with monkeypatch.context() as patched, bench.working(lane=1, host=host, LANES=2):
            wait_until(lambda: host.worker.statistics().phase == "ready")
            patched.setattr(TransactionalProducer, "commit", commit)
            bench.stash([f"key-{n}" for n in range(40)])
            wait_until(lambda: host.worker.statistics().phase == "waiting")
            patched.undo()
            if is_settled:
                request(bench, 1)
                wait_until(lambda: lanes_of(bench) == 1, 60)
            host.worker.finish(time.monotonic() + 10)
            assert host.ended.wait(15)
            assert bool(host.of(UncleanRelease)) is not is_settled
        if is_settled:
            bench.wait_empty()


def test_the_leader_topic_gets_the_partitions_that_the_count_needs(bench):
    """Also at a start: the topic was made anew, or by hand."""
    create_topic(bench.servers, 1, f"{bench.name}.neli")
    bench.stash([f"key-{n}" for n in range(40)])
    with harvester(bench, LANES=2):
        bench.wait_empty(40)
    bench.check()


def test_a_change_that_topics_do_not_allow_is_refused_and_nothing_closes(bench, monkeypatch):
    from outbox.edges.kafka.exactly_once.ledger_topic import LedgerRefused, LedgerTopic

    def refuse(self, topic, partitions):
        if partitions > 1:
            raise LedgerRefused("no right to ALTER")

    monkeypatch.setattr(LedgerTopic, "grow", refuse)
    with working_lanes(bench, [0]):
        wait_until(lambda: lanes_of(bench) == 1, 60)
        request(bench, 2)
        wait_until(lambda: bench.db.execute("SELECT resize_note FROM outbox_state").fetchone() != ("",))
        bench.stash(["a"])
        bench.wait_empty()
    assert bench.db.execute("SELECT lanes, resize_no, resize_note FROM outbox_state").fetchone() == (
        1,
        0,
        "no right to ALTER",
    )


def test_a_lane_that_an_operator_must_settle_leaves_the_count_as_it_was(bench):
    with working_lanes(bench, [0, 1], LANES=2):
        bench.stash([f"key-{n}" for n in range(40)])
        bench.wait_empty()
    bench.db.execute("UPDATE outbox_purged SET batch = 99 WHERE lane = 1")
    request(bench, 4)
    with working_lanes(bench, [0, 2]):
        wait_until(lambda: lanes_of(bench) == 2, 60)
        note = bench.db.execute("SELECT resize_note FROM outbox_state").fetchone()[0]
        assert "outbox_resolve --lane 1 with --resend" in note
        bench.stash([f"key-{n}" for n in range(40)])
        wait_until(lambda: 0 < bench.count < 40)


def test_a_restore_from_before_a_change_stops_every_lane(bench):
    """The lanes in use agree with their ledgers; only a partition above the count tells."""
    with working_lanes(bench, [0, 1], LANES=2):
        bench.stash([f"key-{n}" for n in range(40)])
        bench.wait_empty()
    bench.db.execute("UPDATE outbox_state SET lanes = 1")
    bench.db.execute("DELETE FROM outbox_purged WHERE lane = 1")
    bench.stash(["key-1"])
    with bench.working() as host:
        text = stopped(host)
    assert "The lane count is 1" in text
    assert "outbox_resolve --lane 1 with either --delete-sent" in text
    assert bench.count == 1


@pytest.mark.parametrize("is_heeded", [True, False])
def test_a_failover_to_before_a_change_lets_no_lane_send_what_another_has_sent(bench, monkeypatch, is_heeded):
    """Lane 1 agrees with its ledger: of two lanes it would send what the only one has sent."""
    with working_lanes(bench, [0, 1], LANES=2) as hosts:
        wait_until(lambda: all(host.worker.statistics().takeovers for host in hosts))
        for name in ("state", "purged"):
            bench.db.execute(f"CREATE TABLE saved_{name} AS SELECT * FROM outbox_{name}")
        request(bench, 1)
        wait_until(lambda: lanes_of(bench) == 1 and hosts[1].worker.statistics().phase == "idle", 60)
        bench.stash([f"key-{n}" for n in range(20)])
        bench.wait_empty()
    bench.stash([f"key-{n}" for n in range(20)])
    bench.db.execute("CREATE TABLE saved AS SELECT * FROM outbox")
    with working_lanes(bench, [0]):
        bench.wait_empty()
    for name in ("state", "purged"):
        bench.db.execute(f"DELETE FROM outbox_{name}")
        bench.db.execute(f"INSERT INTO outbox_{name} SELECT * FROM saved_{name}")
    bench.db.execute("INSERT INTO outbox SELECT * FROM saved")
    if not is_heeded:
        monkeypatch.setattr(decisions, "forgets_change", lambda state, newest: False)
    with working_lanes(bench, [1]) as hosts:
        if not is_heeded:
            wait_until(lambda: len(bench.read()) > 40)
            return
        wait_until(lambda: hosts[0].worker.statistics().phase == "closed")
        with bench.working() as host:
            assert "outbox_resolve --lane 0 with either --delete-sent" in stopped(host)
            wait_until(lambda: hosts[0].worker.statistics().phase == "closed")  # it asks again and again
            with Resolver(bench.conf(), lambda: {"conninfo": bench.url}) as resolver:
                assert resolver.resolve(0, Resolution(delete_sent=True)).deleted == 20
            bench.stash([f"key-{n}" for n in range(20)])
            bench.wait_empty()
    assert lanes_of(bench) == 2
    bench.check()


def grow_and_shrink(bench, folder, counts, harvesters=3):
    with (
        Fleet(
            folder,
            url=bench.url,
            servers=bench.servers,
            name=bench.name,
            DELIVERY="exactly-once",
            LANES=counts[0],
            **TIMES,
        ) as fleet,
        bench.writing(keys=40, pause_s=0.02),
    ):
        for _ in range(harvesters):
            fleet.start()
        bench.wait_batches()
        for before, count in itertools.pairwise(counts):
            done = command(bench, count, "--json")
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["lanes"] == count, before
            wait_until(lambda count=count: _all_lanes_deliver(bench, count), 60)
        for member in fleet.members:
            member.send(signal.SIGTERM)
        assert [member.wait() for member in fleet.members] == [0] * harvesters
    with working_lanes(bench, range(counts[-1])):
        bench.wait_empty(60)
    bench.check()


def _all_lanes_deliver(bench, count):
    """Each lane moves its purged number once more."""
    ask = "SELECT lane, max(batch) FROM outbox_purged WHERE lane < %s GROUP BY lane"
    first = dict(bench.db.execute(ask, [count]).fetchall())
    wait_until(
        lambda: (
            (now := dict(bench.db.execute(ask, [count]).fetchall())).keys() >= set(range(count))
            and all(now[lane] > first.get(lane, 0) for lane in range(count))
        ),
        60,
    )
    return True


def test_two_to_six_to_three_under_load(bench, tmp_path):
    grow_and_shrink(bench, tmp_path, [2, 6, 3])


@pytest.mark.torture
def test_up_and_down_again_and_again(bench, tmp_path):
    grow_and_shrink(bench, tmp_path, [2, 6, 3, 6, 1, 8, 5, 2, 7, 3], harvesters=4)


def test_without_a_harvester_the_command_says_so_and_the_request_stays(bench):
    done = command(bench, 3, "--wait", 0.5)
    assert done.returncode == 3
    assert "lane 0 has no owner" in done.stderr
    assert "manage.py outbox_lanes 1" in done.stderr
    with working_lanes(bench, range(3)):
        wait_until(lambda: lanes_of(bench) == 3, 60)
        wait_until(lambda: bench.db.execute("SELECT count(*) FROM outbox_lane").fetchone() == (3,))
    shown = command(bench)
    assert "lanes: 3" in shown.stdout
    assert shown.stdout.count("heartbeat") == 3, shown.stdout


def test_the_present_count_withdraws_a_request(bench):
    assert command(bench, 3, "--wait", 0).returncode == 3
    assert command(bench, 1).returncode == 0
    assert lanes_of(bench) == 1


@pytest.mark.parametrize(
    ("arguments", "settings", "text"),
    [
        (["0"], {}, "0 is not a valid lane count."),
        (["2"], {"OUTBOX_DELIVERY": "at-least-once"}, "takes its lane count from the setting LANES (1)"),
    ],
)
def test_what_cannot_be_is_refused(arguments, settings, text, postgres, bootstrap_servers):
    done = django(
        "outbox_lanes", *arguments, url=os.environ["DATABASE_URL"], **{"OUTBOX_DELIVERY": "exactly-once", **settings}
    )
    assert done.returncode == 1
    assert text in done.stderr
