"""`manage.py harvest --engine spark` as processes: the election, a transformation, stops and deaths. A JVM takes its
seconds to start, so one story is told in full."""

import pytest

from tests.spark.engines import children, javas, judge, kill
from tests.support.topics import create_topic

RECORDS = 1200


@pytest.mark.slow
def test_it_filters_routes_and_masks_and_goes_on_elsewhere_when_stopped_or_killed(
    engines, outbox_table, bootstrap_servers
):
    """The first leads, loses Python workers in open transactions and is stopped while batches wait; the second stands
    by without a JVM, goes on, loses its driver between Kafka's commit and the checkpoint's, and is killed: nothing of
    it stays behind."""
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
    left = children(second.process.pid)
    assert any("outbox.spark.driver" in line for line in left.values())
    kill(second.process.pid)
    fleet.wait_gone(left)
    keys = {id_: (id_ - 1) % RECORDS % 7 for id_ in range(1, RECORDS + 301)}
    received = judge(bootstrap_servers, [topic, routed], [id_ for id_, key in keys.items() if key != 3])
    for message in received:
        assert (message.topic == routed) == (message.key == b"k2")
        assert (message.value == b"masked") == (message.key == b"k1")
