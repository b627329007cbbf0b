"""`manage.py harvest --engine spark` as processes: the election, a transformation, stops and deaths. A JVM takes
seconds to start, so one test has all of it."""

import pytest

from tests.spark.engines import javas, judge, stopped, verified
from tests.support.topics import create_topic

RECORDS = 3000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_filters_routes_and_masks_through_deaths_and_a_stop(spark, engines, outbox_table, bootstrap_servers):
    """The first leads and dies between Kafka's commit and the checkpoint's. The second stood by without a JVM. It
    continues, loses Python workers in open transactions, and is stopped while records wait."""
    topic = create_topic(bootstrap_servers, 3)
    routed = create_topic(bootstrap_servers, 1, name=f"{topic}-routed")
    outbox_table.insert(topic, RECORDS)
    fleet = engines(transform="tests.spark.transforms.shaped")
    first = fleet.start(OUTBOX_FAILPOINTS="epoch-delivered=stop@2").leads()
    second = fleet.start(OUTBOX_FAILPOINTS="before-commit=kill@4").stands_by()
    fleet.wait_for(lambda: stopped(first.process.pid))
    assert javas(first.process.pid)
    assert not javas(second.process.pid)
    fleet.kill(first)
    marked = fleet.state()[0]  # by the first, which marks ahead
    second.leads()
    fleet.wait_for(lambda: fleet.state()[0] >= marked + 3)
    second.ends(0, timeout_s=240)
    assert fleet.state()[1], "the batch under way was not finished"
    left = {row[0] for row in outbox_table.run("SELECT id FROM {table}")}
    expected = {id_ for id_ in range(1, RECORDS + 1) if (id_ - 1) % 7 != 3} - left
    for message in judge(bootstrap_servers, [topic, routed], expected):
        assert (message.topic == routed) == (message.key == b"k2")
        assert (message.value == b"masked") == (message.key == b"k1")
    verified(spark, outbox_table, bootstrap_servers, [topic, routed])
