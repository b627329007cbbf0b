"""The producers of one lane on a real Kafka: every record is reported once, and for what it is."""

import time
from contextlib import contextmanager

import pytest

from outbox.edges.kafka.at_least_once.idempotent import Producers
from outbox.edges.postgres.at_least_once.marks import MarkedRow
from tests.harvest.hosts import wait_until
from tests.support.proxy import Proxy
from tests.support.topics import create_topic, read_topic


def row(number, topic, key="k", value=b"v", names=None, values=None):
    return MarkedRow(number, topic, key, value, names, values, b"")


@contextmanager
def producers_to(servers, delivery_timeout_s=20.0, properties=None, **options):
    made = Producers(
        {"bootstrap.servers": servers, **(properties or {})}, delivery_timeout_s=delivery_timeout_s, **options
    )
    try:
        yield made
    finally:
        made.drop()


def settle(producers, count, timeout_s=60):
    def settled():
        producers.wait(0.01)
        producers.poll()
        return len(producers.acknowledged) + len(producers.undelivered) + len(producers.refused) >= count

    wait_until(settled, timeout_s)
    assert producers.outstanding == 0


def test_records_arrive_with_key_value_and_headers(bootstrap_servers):
    topic = create_topic(bootstrap_servers)
    rows = [
        row(1, topic, "key", b"\x00value", ["a", "a"], ["1", ""]),
        row(2, topic, "", b""),
        row(3, topic, "ü", None),
    ]
    with producers_to(bootstrap_servers) as producers:
        producers.send(0, rows)
        settle(producers, 3)
        assert sorted(producers.acknowledged) == [1, 2, 3]
    found = [(r.key, r.value, r.headers) for r in read_topic(bootstrap_servers, topic)]
    assert found == [
        (b"key", b"\x00value", [("a", b"1"), ("a", b"")]),
        (None, b"", []),
        ("ü".encode(), None, []),
    ]


def test_the_empty_key_can_be_kept(bootstrap_servers):
    topic = create_topic(bootstrap_servers)
    with producers_to(bootstrap_servers, keep_empty_key=True) as producers:
        producers.send(0, [row(1, topic, "")])
        settle(producers, 1)
    assert [r.key for r in read_topic(bootstrap_servers, topic)] == [b""]


def test_headers_that_do_not_pair_are_refused_and_others_go_on(bootstrap_servers):
    topic = create_topic(bootstrap_servers)
    bad = [
        row(1, topic, names=["a", "b"], values=["1"]),
        row(2, topic, names=None, values=["1"]),
        row(3, topic, names=["a"], values=[None]),
        row(4, topic, names=[["a"]], values=[["1"]]),
    ]
    with producers_to(bootstrap_servers) as producers:
        producers.send(0, [*bad, row(5, topic)])
        settle(producers, 5)
        assert producers.acknowledged == [5]
        assert [number for number, _ in producers.refused] == [1, 2, 3, 4]
        assert producers.refused[0][1] == "The record has 2 header keys, but 1 header values."


def test_a_record_too_large_for_client_or_topic_is_refused_alone(bootstrap_servers):
    """The broker refuses the whole batch; its other records are delivered all the same."""
    topic = create_topic(bootstrap_servers, **{"max.message.bytes": "2000"})
    rows = [row(n, topic, f"k{n}", b"v" * (3000 if n == 7 else 100)) for n in range(40)]
    with producers_to(bootstrap_servers, properties={"compression.type": "none", "linger.ms": 100}) as producers:
        producers.send(0, [*rows, row(99, topic, "k99", b"v" * 2_000_000)])
        settle(producers, 41)
        assert sorted(number for number, _ in producers.refused) == [7, 99]
        assert sorted(producers.acknowledged) == [n for n in range(40) if n != 7]
        assert all("MSG_SIZE_TOO_LARGE" in error for _, error in producers.refused)


@pytest.mark.parametrize(("topic", "name"), [("missing", "UNKNOWN_TOPIC"), ("not a name", "TOPIC_EXCEPTION")])
def test_a_topic_that_is_not_there_or_cannot_be_is_refused_soon(bootstrap_servers, topic, name):
    good = create_topic(bootstrap_servers)
    with producers_to(bootstrap_servers, delivery_timeout_s=3) as producers:
        producers.send(0, [row(1, topic), row(2, good)])
        begun = time.monotonic()
        settle(producers, 2)
        assert time.monotonic() - begun < 9
        assert producers.acknowledged == [2]
        assert [number for number, _ in producers.refused] == [1]
        assert name in producers.refused[0][1]


def test_a_broker_that_is_down_is_an_outage(bootstrap_servers):
    with Proxy(kafka=True) as proxy, producers_to(proxy.address, delivery_timeout_s=0.5) as producers:
        producers.send(0, [row(1, "t")])
        settle(producers, 1)
        assert [number for number, _ in producers.undelivered] == [1]
        assert producers.refused == []


def test_a_full_client_is_an_outage_and_every_record_is_reported(bootstrap_servers):
    properties = {"queue.buffering.max.messages": 3}
    with Proxy(kafka=True) as proxy, producers_to(proxy.address, 0.5, properties) as producers:
        producers.send(0, [row(n, "t") for n in range(10)])
        settle(producers, 10)
        assert sorted(number for number, _ in producers.undelivered) == list(range(10))


def test_nothing_goes_out_after_silence_and_everything_is_reported(bootstrap_servers):
    topic = create_topic(bootstrap_servers)
    with producers_to(bootstrap_servers, properties={"linger.ms": 5000}) as producers:
        producers.send(0, [row(1, topic)])
        producers.silence()
        producers.send(0, [row(2, topic)])
        producers.send(1, [row(3, topic)])
        settle(producers, 3)
        assert sorted(number for number, _ in producers.undelivered) == [1, 2, 3]
    assert read_topic(bootstrap_servers, topic) == []


def test_a_dropped_generation_reports_nothing(bootstrap_servers):
    with Proxy(kafka=True) as proxy, producers_to(proxy.address) as producers:
        producers.send(0, [row(n, "t") for n in range(5)])
        begun = time.monotonic()
        producers.drop()
        assert time.monotonic() - begun < 10, "it waits for the delivery, 20 s"
        producers.poll()
        assert producers.outstanding == 0
        assert (producers.acknowledged, producers.undelivered) == ([], [])
