"""The engine on a standalone cluster: both executors produce, and one may die in the middle of a slice."""

import os
import time

import pytest

from tests.spark.cluster import Cluster, kill, resume
from tests.spark.engines import Engines, judge
from tests.support.topics import create_topic

RECORDS = 1500


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    before = dict(os.environ)
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.close()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def engines(cluster, outbox_table, bootstrap_servers, tmp_path):
    """Their Python workers stop themselves in every third transaction, before its commit."""
    config = cluster.config(OUTBOX_FAILPOINTS="before-commit=stop@3")
    made = Engines(outbox_table, bootstrap_servers, tmp_path, master=cluster.url, config=config)
    yield made
    made.discard()


def run(cluster, engines, outbox, servers, kills):
    """Kill the executor of a stopped worker so many times, then let the others go on."""
    topic = create_topic(servers, 3)
    outbox.insert(topic, RECORDS)
    process, killed = engines.start().leads(), set()

    def is_drained():
        for worker, executor in cluster.stopped():
            if len(killed) < kills and executor not in killed:
                killed.add(executor)
                kill(executor, worker)
            elif executor not in killed:
                resume(worker)
        return outbox.count() == 0

    engines.wait_for(is_drained)
    assert len(killed) == kills
    process.process.send_signal(15)
    give_up_at = time.monotonic() + 120
    while process.process.poll() is None:
        is_drained()
        assert time.monotonic() < give_up_at, process.log
        time.sleep(0.05)
    assert process.process.returncode == 0, process.log
    judge(servers, [topic], range(1, RECORDS + 1))


@pytest.mark.slow
def test_both_executors_produce_and_one_that_is_killed_in_a_slice_does_no_harm(
    cluster, engines, outbox_table, bootstrap_servers
):
    run(cluster, engines, outbox_table, bootstrap_servers, kills=1)
    applications = {name for name, _ in cluster.producers()}
    assert applications
    for name in applications:
        assert len({executor for found, executor in cluster.producers() if found == name}) >= 2


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(20))
def test_executors_killed_again_and_again_do_no_harm(cluster, engines, outbox_table, bootstrap_servers, number):
    run(cluster, engines, outbox_table, bootstrap_servers, kills=1 + number % 3)
