"""Drivers that are killed and paused, as processes of their own, judged by what a consumer sees. Long: each start of a
JVM takes its seconds. What every moment of a death means is asked in `test_stream_reader` and `test_writing`."""

import os
import random
import signal
import subprocess
import sys
import time
import uuid

import pytest

from tests.support.databases import ROOT
from tests.support.topics import create_topic, read_topic

RECORDS_PER_KILL = 900
PATIENCE_S = 180


class Drivers:
    def __init__(self, outbox, servers, place):
        self.outbox, self.running = outbox, []
        name = f"d-{uuid.uuid4().hex[:8]}"
        self._arguments = [outbox.url, outbox.table, servers, name, str(place / "checkpoint")]
        self._log = open(place / "drivers.log", "ab")  # noqa: SIM115

    def start(self):
        self.running.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.spark.driver", *self._arguments],
                cwd=ROOT,
                env={name: value for name, value in os.environ.items() if not name.startswith("COV_CORE")},
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        )
        return self.running[-1]

    def kill(self, driver):
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(30)
        self.running.remove(driver)

    def batch(self):
        return self.outbox.run("SELECT batch FROM {spark}") or [(0,)]

    def wait_for(self, condition):
        give_up_at = time.monotonic() + PATIENCE_S
        while not condition():
            assert any(driver.poll() is None for driver in self.running), "every driver has ended"
            assert time.monotonic() < give_up_at
            time.sleep(0.05)

    def close(self):
        for driver in [*self.running]:
            self.kill(driver)
        self._log.close()


@pytest.fixture
def drivers(outbox_table, bootstrap_servers, tmp_path):
    found = Drivers(outbox_table, bootstrap_servers, tmp_path)
    yield found
    found.close()


def judge(servers, topic, count):
    received = [(message.key, int(dict(message.headers)["id"])) for message in read_topic(servers, topic)]
    ids = [id_ for _, id_ in received]
    assert (len(ids), len(set(ids)), set(ids)) == (count, count, set(range(1, count + 1)))
    for key in {key for key, _ in received}:
        own = [id_ for found, id_ in received if found == key]
        assert own == sorted(own), key


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [2, 20])
def test_a_driver_killed_at_any_moment_loses_and_doubles_nothing(
    drivers, outbox_table, bootstrap_servers, kills, request
):
    topic = create_topic(bootstrap_servers, 3)
    chance = random.Random(request.config.getoption("--seed") or 1)
    for _ in range(kills):
        outbox_table.insert(topic, RECORDS_PER_KILL)
        before = drivers.batch()
        driver = drivers.start()
        drivers.wait_for(lambda before=before: drivers.batch() != before)
        time.sleep(chance.uniform(0, 6))
        drivers.kill(driver)
    drivers.start()
    drivers.wait_for(lambda: outbox_table.count() == 0)
    judge(bootstrap_servers, topic, kills * RECORDS_PER_KILL)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(5))
def test_a_driver_that_wakes_up_beside_its_successor_does_no_harm(
    drivers, outbox_table, bootstrap_servers, number, request
):
    topic = create_topic(bootstrap_servers, 3)
    chance = random.Random((request.config.getoption("--seed") or 1) + number)
    outbox_table.insert(topic, 3 * RECORDS_PER_KILL)
    paused = drivers.start()
    drivers.wait_for(lambda: drivers.batch() not in ([], [(0,)]))
    time.sleep(chance.uniform(0, 5))
    os.killpg(paused.pid, signal.SIGSTOP)
    before = drivers.batch()
    drivers.start()
    drivers.wait_for(lambda: drivers.batch() != before or outbox_table.count() == 0)
    os.killpg(paused.pid, signal.SIGCONT)
    drivers.wait_for(lambda: outbox_table.count() == 0)
    judge(bootstrap_servers, topic, 3 * RECORDS_PER_KILL)


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_a_million_records_pass_a_driver_of_half_a_gigabyte(spark, bootstrap_servers):
    """And whose results may be one megabyte: nothing but counters comes to it."""
    from outbox.spark import KafkaSink

    topic = create_topic(bootstrap_servers, 3)
    frame = spark.range(1_000_000).selectExpr(
        "id", f"'{topic}' AS topic", "concat('k', id % 1000) AS key", "repeat('x', 100) AS value"
    )
    assert KafkaSink(f"m-{uuid.uuid4().hex[:8]}", bootstrap_servers, slices=2).write(frame).count == 1_000_000
