"""`manage.py harvest --engine spark` as processes: the election, a transformation, stops and deaths. A JVM takes its
seconds to start, so one story is told in full."""

import signal

import pytest

from tests.spark.engines import Engines, javas, judge
from tests.support.topics import create_topic

RECORDS = 1200


@pytest.fixture
def engines(outbox_table, bootstrap_servers, tmp_path):
    made = []

    def make(**given):
        made.append(Engines(outbox_table, bootstrap_servers, tmp_path, **given))
        return made[-1]

    yield make
    for found in made:
        found.discard()


@pytest.mark.slow
def test_it_filters_routes_and_masks_and_goes_on_elsewhere_when_stopped_or_killed(
    engines, outbox_table, bootstrap_servers
):
    """The first leads, loses Python workers in open transactions and is stopped while batches wait; the second stands
    by without a JVM, goes on, and loses its driver between Kafka's commit and the checkpoint's."""
    topic = create_topic(bootstrap_servers, 3)
    routed = create_topic(bootstrap_servers, 1, name=f"{topic}-routed")
    fleet = engines(transform="tests.spark.transforms.shaped")
    first = fleet.start(OUTBOX_FAILPOINTS="before-commit=kill@4").leads()
    second = fleet.start(OUTBOX_FAILPOINTS="epoch-delivered=kill@2").stands_by()
    outbox_table.insert(topic, RECORDS)
    fleet.wait_for(lambda: fleet.state()[0] >= 2)
    assert not javas(second.process.pid)
    assert javas(first.process.pid)
    first.ends(0, timeout_s=120)
    assert fleet.state()[1], "the batch under way was not finished"
    second.says("spark_driver_ended reason=.*killed", timeout_s=240)
    outbox_table.insert(topic, 300)
    fleet.drain()
    second.ends(0, timeout_s=120)
    keys = {id_: (id_ - 1) % RECORDS % 7 for id_ in range(1, RECORDS + 301)}
    received = judge(bootstrap_servers, [topic, routed], [id_ for id_, key in keys.items() if key != 3])
    for message in received:
        assert (message.topic == routed) == (message.key == b"k2")
        assert (message.value == b"masked") == (message.key == b"k1")


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(20))
def test_a_harvester_that_wakes_up_beside_its_successor_does_no_harm(engines, outbox_table, bootstrap_servers, number):
    """Paused beyond the session time-out: once with its Spark, once while that goes on alone."""
    topic = create_topic(bootstrap_servers, 3)
    fleet = engines()
    outbox_table.insert(topic, RECORDS)
    first, second = fleet.start().leads(), fleet.start().stands_by()
    fleet.wait_for(lambda: fleet.state()[0] >= 1 + number % 3)
    first.process.send_signal(signal.SIGSTOP)
    second.says("spark_started", timeout_s=240)
    fleet.wait_for(lambda: fleet.state()[0] > 4 or outbox_table.count() == 0)
    first.process.send_signal(signal.SIGCONT)
    outbox_table.insert(topic, 300)
    fleet.drain()
    for found in (first, second):
        found.ends(0, timeout_s=120)
    judge(bootstrap_servers, [topic], range(1, RECORDS + 301))
