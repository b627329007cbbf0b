"""The engine on a standalone cluster: both executors produce, and one may die in the middle of a slice."""

import os
import signal
import time

import pytest

from tests.spark.cluster import Cluster, resume
from tests.spark.engines import Engines, judge, kill
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
    made = []

    def make(*settings):
        config = (*cluster.config(OUTBOX_FAILPOINTS="before-commit=stop@3"), *settings)
        made.append(Engines(outbox_table, bootstrap_servers, tmp_path, master=cluster.url, config=config))
        return made[-1]

    yield make
    for found in made:
        found.discard()


def run(cluster, engines, outbox, servers, kills, stopped_s=0.0):
    """Kill the executor of a stopped worker so many times, then let others go on after a while."""
    topic = create_topic(servers, 3)
    outbox.insert(topic, RECORDS)
    process, killed, seen = engines.start().leads(), set(), {}

    def is_drained():
        for worker, executor in cluster.stopped():
            if executor in killed:
                continue
            if len(killed) < kills:
                killed.add(executor)
                kill(executor, worker)
            elif time.monotonic() - seen.setdefault(worker, time.monotonic()) >= stopped_s:
                resume(worker)
        return outbox.count() == 0

    engines.wait_for(is_drained)
    assert len(killed) == kills
    process.process.send_signal(signal.SIGTERM)
    give_up_at = time.monotonic() + 240
    while process.process.poll() is None:
        is_drained()
        assert time.monotonic() < give_up_at, process.log
        time.sleep(0.05)
    assert process.process.returncode == 0, process.log
    judge(servers, [topic], range(1, RECORDS + 1))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_both_executors_produce_and_one_that_is_killed_in_a_slice_does_no_harm(
    cluster, engines, outbox_table, bootstrap_servers
):
    run(cluster, engines(), outbox_table, bootstrap_servers, kills=1)
    found = cluster.producers()
    assert found
    for application, _ in found:
        assert len({executor for name, executor in found if name == application}) >= 2


SPECULATION = (
    "spark.speculation=true",
    "spark.speculation.quantile=0.1",
    "spark.speculation.multiplier=1.1",
    "spark.speculation.interval=100ms",
)


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(20))
def test_killed_executors_and_speculative_copies_do_no_harm(cluster, engines, outbox_table, bootstrap_servers, number):
    """A worker that is stopped for seconds gets a copy, which fences it; then it goes on."""
    run(cluster, engines(*SPECULATION), outbox_table, bootstrap_servers, kills=number % 3, stopped_s=5.0)
