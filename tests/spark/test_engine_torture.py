"""Long fault runs of the Spark engine, judged by what a consumer sees. A harvester is killed with all that it has
started: what every moment of a death means for the parts is asked in `test_stream_reader` and `test_writing`."""

import random
import signal
import time

import pytest

from tests.spark.engines import children, judge, kill, stopped
from tests.support.topics import create_topic, read_topic

RECORDS = 900
MILLION = 1_000_000
STAGES = (
    "after-claim", "after-mark", "epoch-begun", "before-commit", "after-commit", "epoch-delivered",
    "before-purge", "after-purge",
)  # fmt: skip
pytestmark = [pytest.mark.torture, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("number", range(20))
@pytest.mark.parametrize("stage", STAGES)
def test_a_harvester_killed_at_a_stage_loses_and_doubles_nothing(
    engines, outbox_table, bootstrap_servers, stage, number
):
    """Its process stops itself there, in the first, second or third micro-batch, and everything of it is killed."""
    topic = create_topic(bootstrap_servers, 3)
    outbox_table.insert(topic, RECORDS)
    fleet = engines()
    passage = 1 if stage == "after-claim" else 1 + number % 3
    killed = fleet.start(OUTBOX_FAILPOINTS=f"{stage}=stop@{passage}")
    fleet.wait_for(lambda: stopped(killed.process.pid) or outbox_table.count() == 0)
    fleet.kill(killed)
    outbox_table.insert(topic, 100)
    successor = fleet.start()
    fleet.drain()
    successor.ends(0, timeout_s=240)
    judge(bootstrap_servers, [topic], range(1, RECORDS + 101))


def test_a_harvester_killed_at_twenty_random_moments_loses_and_doubles_nothing(
    engines, outbox_table, bootstrap_servers, request
):
    """Alone, so that what it has started ends by itself, or with all of that."""
    topic = create_topic(bootstrap_servers, 3)
    chance = random.Random(request.config.getoption("--seed") or 1)
    fleet = engines()
    for number in range(20):
        outbox_table.insert(topic, RECORDS)
        before = fleet.state()
        found = fleet.start()
        fleet.wait_for(lambda before=before: fleet.state() != before)
        time.sleep(chance.uniform(0, 6))
        if number % 2:
            left = children(found.process.pid)
            kill(found.process.pid)
            fleet.wait_gone(left)
        else:
            fleet.kill(found)
    fleet.start()
    fleet.drain()
    judge(bootstrap_servers, [topic], range(1, 20 * RECORDS + 1))


@pytest.mark.parametrize("number", range(20))
def test_a_harvester_that_wakes_up_beside_its_successor_does_no_harm(engines, outbox_table, bootstrap_servers, number):
    """Paused beyond the session time-out: alone, while its Spark goes on, or with all that it has started."""
    topic = create_topic(bootstrap_servers, 3)
    fleet = engines()
    outbox_table.insert(topic, 2 * RECORDS)
    first, second = fleet.start().leads(), fleet.start().stands_by()
    fleet.wait_for(lambda: fleet.state()[0] >= 1 + number % 3)
    fleet.signal(first, signal.SIGSTOP, with_children=bool(number % 2))
    second.says("spark_started", timeout_s=240)
    before = fleet.state()
    fleet.wait_for(lambda: fleet.state() != before or outbox_table.count() == 0)
    fleet.signal(first, signal.SIGCONT, with_children=bool(number % 2))
    outbox_table.insert(topic, 300)
    fleet.drain()
    for found in (first, second):
        found.ends(0, timeout_s=240)
    judge(bootstrap_servers, [topic], range(1, 2 * RECORDS + 301))


def test_a_million_records_pass_a_driver_of_half_a_gigabyte(engines, outbox_table, bootstrap_servers, capsys):
    """Whose results may be one megabyte: nothing but counters comes to it."""
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
