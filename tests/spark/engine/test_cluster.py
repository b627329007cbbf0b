"""The engine on a standalone cluster: both executors produce, and one may die in the middle of a slice."""

import os
import signal
import time

import pytest

from tests.spark.cluster import Cluster, resume
from tests.spark.engines import POLL_S, Engines, judge, kill, verified
from tests.support.topics import create_topic

RECORDS = 1500
RUNS = 20
DEATHS = 3  # each costs a JVM and two executors
PAUSE_S = 8.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    yield from started(tmp_path_factory.mktemp("cluster"))


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory):
    """Spark runs no speculative copy on the host of the first one."""
    yield from started(tmp_path_factory.mktemp("hosts"), ("127.0.0.1", "127.0.0.2"))


def started(*given):
    before = dict(os.environ)
    made = Cluster(*given)
    yield made
    made.close()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def engines(outbox_table, bootstrap_servers, tmp_path):
    """Their Python workers stop themselves in every third transaction, before its commit."""
    made = []

    def make(cluster, *settings, failpoints="before-commit=stop@3", **given):
        config = (*cluster.config(OUTBOX_FAILPOINTS=failpoints), *settings)
        made.append(Engines(outbox_table, bootstrap_servers, tmp_path, master=cluster.url, config=config, **given))
        return made[-1]

    yield make
    for found in made:
        found.discard()


def run(spark, cluster, engines, outbox, servers, kills):
    """Kill the executor of a stopped worker this many times, then let the others continue."""
    topic = create_topic(servers, 3)
    outbox.insert(topic, RECORDS)
    process, killed = engines.start().leads(), set()

    def is_drained():
        for worker, executor in cluster.stopped():
            if executor in killed:
                continue
            if len(killed) < kills:
                killed.add(executor)
                kill(executor, worker)
            else:
                resume(worker)
        return outbox.count() == 0

    engines.wait_for(is_drained)
    assert len(killed) == kills
    end(process, is_drained)
    judge(servers, [topic], range(1, RECORDS + 1))
    verified(spark, outbox, servers, [topic])


def end(process, work):
    """Cleanly, while stopped workers are helped along."""
    process.process.send_signal(signal.SIGTERM)
    give_up_at = time.monotonic() + 240
    while process.process.poll() is None:
        work()
        assert time.monotonic() < give_up_at, process.log
        time.sleep(POLL_S)
    assert process.process.returncode == 0, process.log


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_both_executors_produce_and_one_that_is_killed_in_a_slice_does_no_harm(
    spark, cluster, engines, outbox_table, bootstrap_servers
):
    run(spark, cluster, engines(cluster), outbox_table, bootstrap_servers, kills=1)
    found = cluster.producers()
    assert found
    for application, _ in found:
        assert len({executor for name, executor in found if name == application}) >= 2


SPECULATION = (
    "spark.speculation=true",
    "spark.speculation.quantile=0.1",
    "spark.speculation.multiplier=1.1",
    "spark.speculation.interval=100ms",
    "spark.speculation.efficiency.enabled=false",
)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fault", ["killed executors", "speculative copies"])
def test_twenty_faults_of_executors_lose_and_double_nothing(
    spark, request, engines, outbox_table, bootstrap_servers, fault
):
    """Workers are stopped before the commit of every slice. Either they are killed there with their executors, or one
    in two sleeps until its copy has fenced it, and then continues."""
    topic = create_topic(bootstrap_servers, 3)
    kills = fault == "killed executors"
    cluster = request.getfixturevalue("cluster" if kills else "two_hosts")
    fleet = engines(cluster, *(() if kills else SPECULATION), failpoints="before-commit=stop", max_records=100)
    process, seen, inserted, passages = fleet.start().leads(), {}, 0, 0
    victims = set()

    def work():
        nonlocal passages
        for worker, executor in cluster.stopped():
            if worker not in seen:  # every second one is a victim
                passages += 1
                is_victim = passages % 2 == 0 and len(victims) < RUNS
                seen[worker] = time.monotonic() + (PAUSE_S if is_victim and not kills else 0), is_victim
            due, is_victim = seen[worker]
            if time.monotonic() < due:
                continue
            if is_victim:
                victims.add((worker, due))
            if is_victim and kills:
                kill(executor, worker)
            else:
                resume(worker)
                seen.pop(worker)
        return outbox_table.count() == 0

    while len(victims) < RUNS:
        outbox_table.insert(topic, 300)
        inserted += 300
        fleet.wait_for(lambda: work() or len(victims) >= RUNS)
    fleet.wait_for(work)
    end(process, work)
    if not kills:
        assert cluster.copies() >= RUNS // 2
    judge(bootstrap_servers, [topic], range(1, inserted + 1))
    verified(spark, outbox_table, bootstrap_servers, [topic])


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_drivers_killed_beside_their_executors_lose_and_double_nothing(
    spark, cluster, engines, outbox_table, bootstrap_servers
):
    """With a worker in an open transaction. It is killed, or it commits when nobody waits for it any more."""
    topic = create_topic(bootstrap_servers, 3)
    fleet = engines(cluster, max_records=100)
    for number in range(DEATHS):
        outbox_table.insert(topic, 1000)
        process = fleet.start().leads()
        fleet.wait_for(cluster.stopped)
        workers = [worker for worker, _ in cluster.stopped()]
        fleet.kill(process)
        for worker in workers:
            (kill if number % 2 else resume)(worker)

    def work():
        for worker, _ in cluster.stopped():
            resume(worker)
        return outbox_table.count() == 0

    process = fleet.start().leads()
    fleet.wait_for(work)
    end(process, work)
    judge(bootstrap_servers, [topic], range(1, 1000 * DEATHS + 1))
    verified(spark, outbox_table, bootstrap_servers, [topic])
