"""More partitions for a topic of records while it is harvested, as docs/consumers.md tells it."""

import time
from collections import defaultdict

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions

KEYS = [f"k{number}" for number in range(40)]


def grow(bench, partitions):
    admin = AdminClient({"bootstrap.servers": bench.servers})
    [future] = admin.create_partitions([NewPartitions(bench.topic, partitions)]).values()
    future.result(20)


def uses_new_partitions(bench):
    try:
        return any(record.partition >= 3 for record in bench.read())
    except KafkaException:  # they have no leaders yet
        return False


def test_a_topic_that_grows_gets_every_record_once_in_the_order_of_each_partition(bench):
    with bench.working(KAFKA={"topic.metadata.refresh.interval.ms": 300}) as host:
        bench.stash(KEYS * 3)
        grow(bench, 8)
        deadline = time.monotonic() + 60
        while not uses_new_partitions(bench):
            assert time.monotonic() < deadline
            bench.stash(KEYS * 3)
        bench.wait_empty()
        assert host.errors == []
    found = bench.read()
    assert len({record.value for record in found}) == len(found) == bench.stashed.count
    in_order = defaultdict(list)
    for record in found:
        in_order[record.partition, record.key].append(int(record.value))
    assert all(values == sorted(values) for values in in_order.values())
