"""One, four and eight harvesters of one table under load, with producers that fail and false reports."""

import random
import threading
import time
import uuid
from contextlib import ExitStack
from functools import partial

import pytest
from confluent_kafka import KafkaError, KafkaException

from outbox.edges.kafka.common.clients import idempotent_producer
from outbox.harvest import Harvester
from outbox.harvest.at_least_once.lane import AtLeastOnce
from tests.harvest import hosts
from tests.harvest.hosts import wait_until
from tests.support.checker import Writer, judge

pytestmark = pytest.mark.slow
# The test does not measure a busy machine: a leader that is fenced for a slow answer would repeat records.
UNHURRIED = {"HEARTBEAT_TIMEOUT": 5, "SESSION_TIMEOUT": 12, "DELIVERY_TIMEOUT": 6}


class Faults:
    """A share of produce calls fails, a further share is delivered and reported as failed. Counts both."""

    def __init__(self, share, seed):
        self.share, self.random, self.lock = share, random.Random(seed), threading.Lock()
        self.refused = self.lied = 0

    def draw(self):
        with self.lock:
            number = self.random.random()
            refuses, lies = number < self.share, self.share <= number < 2 * self.share
            self.refused += refuses
            self.lied += lies
            return refuses, lies

    def producer(self, properties):
        return _Faulty(idempotent_producer(properties), self)


class _Faulty:
    def __init__(self, real, faults):
        self._real, self._faults = real, faults

    def produce(self, topic, value, key, *, headers, on_delivery):
        refuses, lies = self._faults.draw()
        if refuses:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "simulated"))

        def report(error, message):
            on_delivery(error or KafkaError(KafkaError._MSG_TIMED_OUT, "simulated"), message)

        self._real.produce(topic, value, key, headers=headers, on_delivery=report if lies else on_delivery)

    def __getattr__(self, name):
        return getattr(self._real, name)

    def __len__(self):
        return len(self._real)


class Site:
    def __init__(self, bench, faults, **settings):
        self.bench, self.faults, self.nodes = bench, faults, []
        self.conf = hosts.settings(
            BOOTSTRAP_SERVERS=bench.servers, NAME=f"i{uuid.uuid4().hex[:12]}", **{**UNHURRIED, **settings}
        )
        self.factory = partial(AtLeastOnce, connect=hosts.connector(bench.url), make_producer=faults.producer)

    def start(self):
        self.nodes.append(Harvester(self.conf, worker_factory=self.factory, check_table=lambda *_: None).start())
        return self.nodes[-1]

    def wait_delivered(self, more=100):
        newest = "SELECT coalesce(max(id), 0) FROM outbox"
        until = self.bench.db.execute(newest).fetchone()[0] + more
        left = "SELECT (SELECT last_value FROM outbox_id_seq) <= %s OR EXISTS (SELECT FROM outbox WHERE id <= %s)"
        wait_until(lambda: not self.bench.db.execute(left, [until, until]).fetchone()[0], 60)

    def end(self):
        """In the order of their start; every one ends without an error."""
        for node in self.nodes:
            node.stop()
            assert node.wait(30) is True

    def __exit__(self, *_):
        for node in self.nodes:
            node.stop(force=True)
            node._stopped.wait(30)

    def __enter__(self):
        return self


def opened(bench, share, **settings):
    stack = ExitStack()
    site = stack.enter_context(Site(bench, Faults(share, seed=1), **settings))
    site.writer = stack.enter_context(Writer(bench.url, bench.topic, keys=10, rate=400))
    return stack, site


def result(site):
    site.writer.stop()
    site.bench.wait_empty(60)
    return judge([site.writer.log], site.bench.read())


def test_one_harvester_with_failing_producers_and_lying_reports(bench):
    stack, site = opened(bench, 0.02)
    with stack:
        site.start()
        wait_until(lambda: site.faults.refused > 5 and site.faults.lied > 5, 60)
        site.wait_delivered()
        found = result(site)
        site.end()
    found.assert_kept(repeats_max=site.faults.lied)
    assert found.repeats > 0, "a report that lies makes a repeat: the faults did not happen"


@pytest.mark.timeout(240)
def test_four_harvesters_share_four_lanes_with_the_same_faults(bench):
    stack, site = opened(bench, 0.02, LANES=4)
    with stack:
        for _ in range(4):
            site.start()
            time.sleep(0.5)
        wait_until(lambda: sorted(len(node.leader_ids) for node in site.nodes) == [1] * 4, 60)
        site.wait_delivered()
        for node in site.nodes[:3]:
            node.stop()
            assert node.wait(30) is True
            site.wait_delivered()
        found = result(site)
        site.end()
    found.assert_kept(repeats_max=site.faults.lied)


@pytest.mark.timeout(240)
def test_eight_harvesters_come_and_go_without_faults_and_repeat_nothing(bench):
    stack, site = opened(bench, 0.0)
    with stack:
        for _ in range(4):
            site.start(), site.start()
            time.sleep(0.5)
        for first, last in ((0, 1), (1, 3), (3, 5), (5, 7)):
            site.wait_delivered()
            for node in site.nodes[first:last]:
                node.stop()
            for node in site.nodes[first:last]:
                assert node.wait(30) is True
        found = result(site)
        site.end()
    found.assert_kept(repeats_max=0)
    assert (site.faults.refused, site.faults.lied) == (0, 0)
