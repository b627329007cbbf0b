"""When the first message behind a position was produced, on a real Kafka."""

import time
import uuid

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from outbox.core.consumers.values import Partition
from outbox.edges.kafka.consumers.heads import NOTHING, Head, heads
from tests.support.topics import create_topic

PAST_MS = 1_700_000_000_000


@pytest.fixture
def ask(bootstrap_servers):
    def ask(positions, servers=bootstrap_servers, **given):
        return heads({"bootstrap.servers": servers}, f"g-{uuid.uuid4().hex[:8]}", positions, **given)

    return ask


def produce(servers, partition, times_ms, *, commit=None):
    """In a transaction that is committed, aborted, or in none."""
    transactional = {} if commit is None else {"transactional.id": f"t-{uuid.uuid4().hex[:8]}"}
    producer = Producer({"bootstrap.servers": servers, **transactional})
    if commit is not None:
        producer.init_transactions(20)
        producer.begin_transaction()
    for time_ms in times_ms:
        producer.produce(partition.topic, b"v", partition=partition.number, timestamp=time_ms)
    assert producer.flush(20) == 0
    if commit is not None:
        (producer.commit_transaction if commit else producer.abort_transaction)(20)
    return producer


def test_the_time_of_the_first_message_of_each_position(bootstrap_servers, ask):
    topic = create_topic(bootstrap_servers, 4)
    one, two, three, four = (Partition(topic, number) for number in range(4))
    produce(bootstrap_servers, one, [PAST_MS + number for number in range(3000)])
    produce(bootstrap_servers, two, [PAST_MS + 5])
    assert ask({}) == {}
    found = ask({one: 7, two: 0, three: 0, four: 0})
    assert found == {one: Head(PAST_MS + 7), two: Head(PAST_MS + 5), three: NOTHING, four: NOTHING}
    assert ask({one: 3000, two: 1}) == {one: NOTHING, two: NOTHING}


def test_only_what_is_committed_counts(bootstrap_servers, ask):
    topic = create_topic(bootstrap_servers, 3)
    one, two, three = (Partition(topic, number) for number in range(3))
    produce(bootstrap_servers, one, [PAST_MS], commit=False)
    produce(bootstrap_servers, one, [PAST_MS + 1], commit=True)
    produce(bootstrap_servers, two, [PAST_MS], commit=False)
    beginner = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": f"t-{uuid.uuid4().hex[:8]}"})
    beginner.init_transactions(20)
    beginner.begin_transaction()
    beginner.produce(topic, b"v", partition=2, timestamp=PAST_MS)
    assert beginner.flush(20) == 0
    assert ask({one: 0, two: 0, three: 0}) == {one: Head(PAST_MS + 1), two: NOTHING, three: NOTHING}
    beginner.abort_transaction(20)


def test_what_is_unknown_has_a_reason(bootstrap_servers, ask):
    topic = create_topic(bootstrap_servers)
    one = Partition(topic, 0)
    produce(bootstrap_servers, one, [PAST_MS] * 5)
    expired = TopicPartition(topic, 0, 3)
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.delete_records([expired])[expired].result(20)
    found = ask({one: 1})[one]
    assert found.time_ms is None
    assert "_AUTO_OFFSET_RESET" in found.reason
    began = time.monotonic()
    assert ask({one: 0}, "127.0.0.1:1", timeout_s=0.5) == {one: Head(None, "Kafka did not return the message in 0.5 s")}
    assert time.monotonic() - began < 10
