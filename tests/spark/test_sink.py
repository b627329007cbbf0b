"""Exactly-once delivery of DataFrames to a real Kafka."""

import uuid

import pytest

from outbox.spark import KafkaSink
from tests.support.topics import create_topic, read_topic


@pytest.fixture
def name():
    return f"sink-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(bootstrap_servers):
    return create_topic(bootstrap_servers, 3)


def records(spark, topic, count, keys=7):
    return spark.range(count).selectExpr(
        "id", f"'{topic}' AS topic", f"concat('k', id % {keys}) AS key", "concat('value ', id) AS value"
    )


def test_a_batch_arrives_once_in_order(spark, bootstrap_servers, topic, name):
    sink = KafkaSink(name, bootstrap_servers, slices=3, id_header="id")
    frame = records(spark, topic, 1000)
    assert sink.write(frame, 0).count == 1000
    again = KafkaSink(name, bootstrap_servers, slices=3, id_header="id").write(frame, 0)
    assert (again.count, again.skipped) == (1000, 3)
    sink.write(records(spark, topic, 500), 1)
    received = read_topic(bootstrap_servers, topic)
    by_key = {}
    for message in received:
        by_key.setdefault(message.key, []).append(int(dict(message.headers)["id"]))
    assert len(received) == 1500
    for key, ids in by_key.items():
        number = int(key[1:])
        assert ids == [*range(number, 1000, 7), *range(number, 500, 7)]
