"""Metrics of a process with consumers: every name, with the numbers of the process."""

from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from outbox.consumers.counts import ConsumerCounts
from outbox.contrib import consumer_metrics, exposition
from outbox.core.consumers.partition import Life
from outbox.core.consumers.shown import MessageCounts, ShownPartition
from outbox.core.consumers.values import Partition

ONE, TWO, THREE = (Partition("orders", number) for number in range(3))


def row(partition, lag, age_s):
    return ShownPartition(partition, "reading", "", 100, lag, age_s, 0, None)


def process(**changed):
    counts = ConsumerCounts(1)
    counts.began(0, 10.0)
    counts.committed(0, {ONE: 3, TWO: 4}, 10.2)
    counts.failed(0)
    given = {
        "is_ready": True,
        "counted": {"shop.pay": counts.read()},
        "seen": {"shop.pay": [row(ONE, 5, 2.5), row(TWO, 7, 40.0), row(THREE, None, None)]},
        "partitions": {"shop.pay": {ONE: (Life.READING, ""), TWO: (Life.READING, ""), THREE: (Life.STOPPED, "why")}},
        "is_waiting": {"shop.pay": False},
        "failing": {"shop.pay": ""},
        "held": {"shop.pay": MessageCounts(held=9, undecided=2, dead=3)},
        "seen_age_s": 3.5,
    }
    return SimpleNamespace(**{**given, **changed})


def samples(given):
    text = exposition.exposition(consumer_metrics.registry_of(given, "shop")).decode()
    families = list(text_string_to_metric_families(text))
    found = {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}
    return {key: value for key, value in found.items() if key[0].startswith("outbox_")}


def test_every_metric_of_the_catalogue_has_the_number_of_the_process():
    found = samples(process())
    names = {name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for name, *_ in found}
    assert names == consumer_metrics.CATALOGUE.keys()
    assert found["outbox_consumer_ready",] == 1
    assert found["outbox_consumer_handled_messages_total", "shop.pay"] == 7
    assert found["outbox_consumer_failed_attempts_total", "shop.pay"] == 1
    assert found["outbox_consumer_batch_duration_seconds_count", "shop.pay"] == 1
    assert found["outbox_consumer_batch_duration_seconds_sum", "shop.pay"] == pytest.approx(0.2)
    buckets = [found["outbox_consumer_batch_duration_seconds_bucket", "shop.pay", le] for le in ("0.1", "0.25", "+Inf")]
    assert buckets == [0, 1, 1]
    assert found["outbox_consumer_lag_messages", "shop.pay"] == 12
    assert found["outbox_consumer_lag_seconds", "shop.pay"] == 40.0
    states = {key[2]: value for key, value in found.items() if key[0] == "outbox_consumer_partitions"}
    assert {state: count for state, count in states.items() if count} == {"reading": 2, "stopped": 1}
    assert states.keys() == {life.value for life in Life} - {"revoking", "revoked"}
    assert (found["outbox_consumer_waiting", "shop.pay"], found["outbox_consumer_failing", "shop.pay"]) == (0, 0)
    assert found["outbox_consumer_held_messages", "shop.pay"] == 9
    assert found["outbox_consumer_undecided_messages", "shop.pay"] == 2
    assert found["outbox_consumer_dead_letters", "shop.pay"] == 3
    assert found["outbox_consumer_sample_age_seconds",] == 3.5


def test_what_is_unknown_is_left_out():
    unknown = {"seen": {"shop.pay": [row(ONE, None, None)]}, "seen_age_s": None, "held": {}}
    found = samples(process(**unknown, is_waiting={"shop.pay": True}))
    names = {name for name, *_ in found}
    assert names.isdisjoint(
        {"outbox_consumer_lag_messages", "outbox_consumer_lag_seconds", "outbox_consumer_sample_age_seconds"}
    )
    assert "outbox_consumer_held_messages" not in names
    assert found["outbox_consumer_waiting", "shop.pay"] == 1
    assert samples(process(failing={"shop.pay": "no answer"}))["outbox_consumer_failing", "shop.pay"] == 1
    assert (
        samples(process(seen={}, partitions={}, counted={}, is_waiting={}, failing={}))["outbox_consumer_ready",] == 1
    )
