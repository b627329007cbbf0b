"""A transactional client in its only life: what it leaves behind when it is thrown away."""

import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, TopicPartition

from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer, properties_of
from tests.harvest.hosts import wait_until
from tests.support.topics import create_topic

ATTEMPTS = 300


def initialised(servers, name):
    properties = properties_of({"bootstrap.servers": servers}, name, transaction_timeout_s=60)
    producer = TransactionalProducer(properties)
    producer.initialise(60)
    return producer


def committed_end(servers, topic):
    """The first offset that a reader of what is committed does not get to see."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "isolation.level": "read_committed"})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), 30)[1]
    finally:
        consumer.close()


@pytest.mark.parametrize("letting_go", ["drop", "drop_and_wait"])
def test_a_dropped_client_begins_to_abort_its_transaction(bootstrap_servers, letting_go):
    """From then on it registers no partition, which while it is destroyed would end the process."""
    topic = create_topic(bootstrap_servers)
    producer = initialised(bootstrap_servers, f"dropped-{uuid.uuid4().hex}")
    producer.begin()
    producer.client.produce(topic, b"not to be seen")
    assert producer.client.flush(60) == 0
    assert committed_end(bootstrap_servers, topic) == 0
    getattr(producer, letting_go)()
    wait_until(lambda: committed_end(bootstrap_servers, topic) == 2, 50)  # the record and the end of its transaction


DROPS = """
import random, sys, time
from tests.edges.kafka.test_transactional import initialised
chance = random.Random(sys.argv[3])
for _ in range(int(sys.argv[4])):
    producer = initialised(sys.argv[1], "drops-" + sys.argv[3])
    producer.client.list_topics(sys.argv[2], 30)
    producer.begin()
    producer.client.produce(sys.argv[2], b"x")
    time.sleep(chance.random() * 0.004)
    producer.drop_and_wait()
"""


@pytest.mark.torture
def test_a_client_may_be_dropped_while_it_registers(bootstrap_servers):
    """Without the abort three of four processes on one core end by SIGABRT within 300 drops."""
    topic = create_topic(bootstrap_servers)

    def dropping(number):
        command = [sys.executable, "-c", DROPS, bootstrap_servers, topic, str(number), str(ATTEMPTS)]
        return subprocess.run(["taskset", "-c", "0", *command], timeout=300, check=False).returncode

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(dropping, range(4))) == [0, 0, 0, 0]
