"""The exactly-once worker under the real election: several harvesters, lanes that move, a process that is killed."""

import os
import signal
import subprocess
import sys

import psycopg
import pytest

from outbox.harvest.exactly_once.lane import ExactlyOnceFactory
from outbox.harvest.harvester import Harvester, StopOutOfTime
from tests.harvest.exactly_once.bench import wait_until
from tests.support.databases import ROOT

# The waits inside of one test may together take longer than a test may otherwise.
pytestmark = pytest.mark.timeout(420)

TIMES = {"HEARTBEAT_TIMEOUT": 2, "SESSION_TIMEOUT": 6}
CHILD = """
import os, sys, time, django
django.setup()
from django.conf import settings
from outbox.conf import parse
from outbox.harvest.harvester import Harvester
from outbox.harvest.exactly_once.lane import ExactlyOnceFactory
given = eval(sys.argv[1])
harvester = Harvester(parse({**settings.OUTBOX, **given}), worker_factory=ExactlyOnceFactory()).start()
harvester.wait()
"""


def harvester(bench, **settings):
    factory = ExactlyOnceFactory(source=lambda: {"conninfo": bench.url})
    conf = bench.conf(**{**TIMES, **settings})
    return Harvester(conf, worker_factory=factory, check_table=lambda alias, table: None)


@pytest.fixture
def child(bench):
    given = {"DELIVERY": "exactly-once", "NAME": bench.name, "BOOTSTRAP_SERVERS": bench.servers, "LANES": 2, **TIMES}
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, repr(given)],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": bench.url, "DJANGO_SETTINGS_MODULE": "tests.settings"},
    )
    yield process
    process.kill()
    process.wait()


def test_one_harvester_after_another(bench):
    with bench.writing():
        for _ in range(3):
            with harvester(bench):
                bench.wait_batches()
    with harvester(bench):
        bench.wait_empty(40)
    bench.check()


def test_harvesters_share_the_lanes_and_one_is_killed(bench, child):
    with bench.writing():
        bench.wait_batches()
        with harvester(bench, LANES=2) as second:
            wait_until(lambda: len(second.leader_ids) == 1, 60)
            wait_until(lambda: second.statistics and all(s.delivered for s in second.statistics.values()), 60)
            child.send_signal(signal.SIGKILL)
            wait_until(lambda: len(second.leader_ids) == 2, 60)
            wait_until(lambda: all(s.delivered for s in second.statistics.values()), 60)
            assert second.in_flight >= 0
    with harvester(bench, LANES=2):
        bench.wait_empty(60)
    bench.check()


def test_a_stop_that_cannot_purge_in_time_does_not_look_like_one_in_good_order(bench, caplog):
    """What is in Kafka is still in the table: another mode would send it again."""
    caplog.set_level("INFO", "outbox")
    bench.stash(["a"])
    running = harvester(bench).start()
    wait_until(lambda: bench.count == 0)
    with psycopg.connect(bench.url) as other:
        other.execute("LOCK TABLE outbox_purged IN SHARE MODE")
        bench.stash(["b"])
        wait_until(lambda: len(bench.read()) == 2)
        running.stop()
        with pytest.raises(StopOutOfTime, match=r"Lane 0: PostgreSQL did not confirm.*harvest --once"):
            running.wait(40)
    assert "unclean_release lane=0" in caplog.text
    with harvester(bench):
        bench.wait_empty(60)
    bench.check()
