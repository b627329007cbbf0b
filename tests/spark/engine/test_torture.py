"""Long fault runs of the Spark engine's processes. A consumer and the verification check the result. Each fault is
injected twenty times over one table, one ledger and one checkpoint, so that each death finds what the last one left
behind. `source/test_datasource` and `sink/test_slice_writer` test what each moment of a death means for the parts."""

import os
import random
import signal
import time

import pytest

from tests.spark.drivers import Drivers
from tests.spark.engines import children, javas, judge, kill, stopped, verified
from tests.support.topics import create_topic, read_topic

RUNS = 20
MILLION = 1_000_000
STAGES = (
    "after-take", "after-mark", "epoch-begun", "before-commit", "after-commit", "epoch-delivered",
    "before-purge", "after-purge",
)  # fmt: skip
IN_SLICES = ("before-commit", "after-commit")
pytestmark = [pytest.mark.torture, pytest.mark.timeout(3600)]


@pytest.fixture
def drivers(outbox_table, bootstrap_servers, tmp_path):
    made = []

    def make(**given):
        made.append(Drivers(outbox_table, bootstrap_servers, tmp_path, **given))
        return made[-1]

    yield make
    for found in made:
        found.discard()


def killed_at(drivers, outbox, failpoints, insert):
    """One after the other stops itself there and is killed, while the next one's JVM starts. One more drains the
    table."""
    following = drivers.start(failpoints[0])
    for number in range(len(failpoints)):
        current = following.until(lambda found=following: found.of("ready"))
        following = drivers.start(failpoints[number + 1] if number + 1 < len(failpoints) else "")
        insert(number)
        current.go().until(current.is_stopped)
        current.kill()
    following.go().until(lambda: outbox.count() == 0)
    following.finish()


def moments(stage):
    """In the first, second or third micro-batch; in slices that follow one another: before, between and after them."""
    if stage == "after-take":  # it has marked nothing: the state that the one before has left matters
        return ["epoch-delivered=stop@1", "after-take=stop@1"] * (RUNS // 2) + ["after-take=stop@1"] * (RUNS // 2)
    return [f"{stage}=stop@{1 + number % (4 if stage in IN_SLICES else 3)}" for number in range(RUNS)]


@pytest.mark.parametrize("stage", STAGES)
def test_drivers_killed_at_a_stage_lose_and_double_nothing(spark, drivers, outbox_table, bootstrap_servers, stage):
    topic = create_topic(bootstrap_servers, 3)
    fleet = drivers(master="local[1,4]" if stage in IN_SLICES else "local[2,4]")
    plan = moments(stage)
    killed_at(fleet, outbox_table, plan, lambda number: outbox_table.insert(topic, 350))
    judge(bootstrap_servers, [topic], range(1, 350 * len(plan) + 1))
    verified(spark, outbox_table, bootstrap_servers, [topic])


def test_drivers_killed_in_epochs_without_records_lose_and_double_nothing(
    spark, drivers, outbox_table, bootstrap_servers
):
    """The transformation filters out two thirds of the inserted records."""
    topic = create_topic(bootstrap_servers, 3)
    plan = [f"{STAGES[1:][number % 7]}=stop@{1 + number % 3}" for number in range(RUNS)]
    wanted = []

    def insert(number):
        outbox_table.insert(topic, 350, keys=6 if number % 3 else 7)
        wanted.extend(id_ for id_ in range(350 * number + 1, 350 * number + 351) if not number % 3 and id_ % 7 == 0)

    killed_at(drivers(transform="tests.spark.transforms.only_some"), outbox_table, plan, insert)
    judge(bootstrap_servers, [topic], wanted)
    verified(spark, outbox_table, bootstrap_servers, [topic])


def test_killed_workers_lose_and_double_nothing(spark, drivers, outbox_table, bootstrap_servers):
    """Each Python worker stops itself in its second transaction, before or after the commit, and is killed there."""
    topic = create_topic(bootstrap_servers, 3)
    running = drivers(max_records=50).start("before-commit=stop@2,after-commit=stop@2")
    passed, killed = set(), set()
    inserted = 0

    def work():
        for worker in stopped(running.pid):
            if worker in killed:
                continue
            if len(killed) < RUNS and (worker in passed or len(killed) % 2):
                killed.add(worker)
                kill(worker)
            else:
                passed.add(worker)
                os.kill(worker, signal.SIGCONT)
        return outbox_table.count() == 0

    running.go()
    while len(killed) < RUNS:
        outbox_table.insert(topic, 300)
        inserted += 300
        running.until(lambda: work() or len(killed) >= RUNS)
    running.until(work)
    running.tell("finish")
    running.until(lambda: work() and running.of("finished"))
    judge(bootstrap_servers, [topic], range(1, inserted + 1))
    verified(spark, outbox_table, bootstrap_servers, [topic])


def test_a_driver_that_wakes_up_beside_its_successor_does_no_harm(spark, drivers, outbox_table, bootstrap_servers):
    """Without an election: it was paused at any point, another has the table, and it finds that out by itself."""
    topic = create_topic(bootstrap_servers, 3)
    chance, fleet = random.Random(1), drivers()
    following = fleet.start()
    for number in range(RUNS):
        current = following.until(lambda found=following: found.of("ready"))
        following = fleet.start()
        outbox_table.insert(topic, 1000)
        current.go().until(lambda found=current: found.of("epoch"))
        following.until(lambda found=following: found.of("ready"))
        time.sleep(chance.uniform(0, 0.5))
        current.signal(signal.SIGSTOP)
        outbox_table.insert(topic, 1000)  # on a busy machine the successor would find no work
        following.go().until(lambda found=following, count=number % 3: len(found.of("epoch")) > count)
        current.signal(signal.SIGCONT)
        current.until(lambda found=current: found.of("failed"))
        assert current.of("failed")[0]["kind"] == "fenced", current.log()
        current.kill()
    following.until(lambda: outbox_table.count() == 0).finish()
    judge(bootstrap_servers, [topic], range(1, 2000 * RUNS + 1))
    verified(spark, outbox_table, bootstrap_servers, [topic])


# ---- with harvesters and their election


def test_a_harvester_killed_at_twenty_random_moments_loses_and_doubles_nothing(
    spark, engines, outbox_table, bootstrap_servers, request
):
    """Alone, so that the processes that it has started end by themselves, or with all of them."""
    topic = create_topic(bootstrap_servers, 3)
    chance = random.Random(request.config.getoption("--seed") or 1)
    fleet = engines()
    for number in range(RUNS):
        outbox_table.insert(topic, 900)
        before = fleet.state()
        found = fleet.start()
        fleet.wait_for(lambda before=before: fleet.state() != before)
        time.sleep(chance.uniform(0, 3))
        if number % 2:
            left = children(found.process.pid)
            kill(found.process.pid)
            fleet.wait_gone(left)
        else:
            fleet.kill(found)
    fleet.start()
    fleet.drain()
    judge(bootstrap_servers, [topic], range(1, RUNS * 900 + 1))
    verified(spark, outbox_table, bootstrap_servers, [topic])


def test_a_harvester_that_wakes_up_beside_its_successor_does_no_harm(spark, engines, outbox_table, bootstrap_servers):
    """Paused beyond the session timeout: alone, while its Spark continues, or with all its processes. It stands by
    then, and is the successor of the next one."""
    topic = create_topic(bootstrap_servers, 3)
    fleet = engines()
    leader, other = fleet.start().leads(), fleet.start().stands_by()
    for number in range(RUNS):
        before, started = fleet.state(), other.log.count("spark_started")
        outbox_table.insert(topic, 900)
        fleet.wait_for(lambda before=before: fleet.state()[0] > before[0])
        fleet.signal(leader, signal.SIGSTOP, with_children=bool(number % 2))
        fleet.wait_for(lambda other=other, started=started: other.log.count("spark_started") > started)
        before = fleet.state()  # later these records might be delivered already
        outbox_table.insert(topic, 300)
        fleet.wait_for(lambda before=before: fleet.state()[0] > before[0])
        fleet.signal(leader, signal.SIGCONT, with_children=bool(number % 2))
        fleet.wait_for(lambda leader=leader: not javas(leader.process.pid))
        leader, other = other, leader
    fleet.drain()
    for found in (leader, other):
        found.ends(0, timeout_s=240)
    judge(bootstrap_servers, [topic], range(1, RUNS * 1200 + 1))
    verified(spark, outbox_table, bootstrap_servers, [topic])


def test_a_million_records_pass_a_driver_of_half_a_gigabyte(engines, outbox_table, bootstrap_servers, capsys):
    """Its results may take one megabyte: only counters come to it."""
    topic = create_topic(bootstrap_servers, 3)
    for _ in range(10):
        outbox_table.insert(topic, MILLION // 10, keys=1000)
    fleet = engines(max_records=50_000)
    began = time.monotonic()
    found = fleet.start().leads()
    found.says("spark_started", timeout_s=240)
    started = time.monotonic()
    fleet.drain(patience_s=1800)
    ended = time.monotonic()
    found.ends(0, timeout_s=240)
    received = read_topic(bootstrap_servers, topic, timeout_s=600)
    ids = {int(dict(message.headers)["outbox-id"]) for message in received}
    assert (len(received), len(ids), min(ids), max(ids)) == (MILLION, MILLION, 1, MILLION)
    with capsys.disabled():
        rate = MILLION / (ended - started)
        print(f"\na million records: {ended - began:.0f} s, {rate:,.0f} records/s once Spark had started")
