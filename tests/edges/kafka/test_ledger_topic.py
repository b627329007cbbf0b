"""The ledger topic on real brokers: the last entry below open, aborted and compacted neighbours."""

import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from outbox.core.exactly_once import ledger
from outbox.core.exactly_once.ledger import Entry
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerMissing, LedgerRefused, LedgerTopic, LedgerUnreachable
from tests.support.databases import ROOT
from tests.support.topics import create_topic
from tests.support.wall_clock import WallClock


@pytest.fixture
def topic(bootstrap_servers):
    found = LedgerTopic({"bootstrap.servers": bootstrap_servers}, f"ledger-{uuid.uuid4().hex[:8]}")
    found.prepare(2, 3600)
    yield found
    found.close()


def entry(batch, lane=0, ids=(1,)):
    return Entry(lane, batch, uuid.uuid4(), uuid.uuid4(), tuple(ids), 0, datetime.now(UTC))


@pytest.fixture
def writer(bootstrap_servers):
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(20)
    return producer


def write(topic, producer, *entries, end="commit_transaction", lane=0):
    for found in entries:
        producer.begin_transaction()
        producer.produce(topic.name, ledger.encode(found), ledger.entry_key(lane), lane)
        producer.flush(10)
        if end:
            getattr(producer, end)(10)


def last(topic, lane=0, within_s=10.0):
    return topic.last_entry(lane, time.monotonic() + within_s)


def test_an_empty_ledger_has_no_entry(topic):
    assert last(topic) is None
    assert last(topic, 1) is None


def test_the_last_committed_entry_counts_whatever_follows_it(topic, writer):
    entries = [entry(batch) for batch in range(1, 6)]
    write(topic, writer, *entries)
    assert last(topic) == entries[-1]
    write(topic, writer, *(entry(batch) for batch in range(6, 46)), end="abort_transaction")
    assert last(topic) == entries[-1], "forty aborted entries lie above it"
    assert last(topic, 1) is None


def announce(topic, producer, end="commit_transaction"):
    producer.begin_transaction()
    producer.produce(topic.name, ledger.BEGINNING, ledger.BEGINNING_KEY, 0)
    producer.flush(10)
    if end:
        getattr(producer, end)(10)


def test_what_only_announces_an_entry_is_passed_over(topic, writer):
    """Also where a late EndTxn has committed it alone."""
    announce(topic, writer)
    assert last(topic) is None
    written = entry(1)
    write(topic, writer, written)
    for _ in range(20):
        announce(topic, writer)
    announce(topic, writer, end="abort_transaction")
    assert last(topic) == written


def test_what_began_after_the_question_is_not_waited_for(topic, writer, bootstrap_servers):
    """The partition of a lane at work has a transaction open nearly always."""
    write(topic, writer, entry(1))
    announce(topic, writer, end="")
    asked = threading.Event()
    watermark = topic._high_watermark

    def high_watermark(lane):
        found = watermark(lane)
        asked.set()
        return found

    topic._high_watermark = high_watermark
    found = []
    question = threading.Thread(target=lambda: found.append(last(topic)))
    question.start()
    assert asked.wait(10)
    writer.produce(topic.name, ledger.encode(entry(2)), ledger.entry_key(0), 0)
    writer.commit_transaction(10)
    announce(topic, writer, end="")
    question.join(10)
    assert [entry.batch for entry in found] == [1], "the question is about the partition as it was"
    writer.abort_transaction(10)


def test_a_large_entry(topic, writer):
    large = entry(1, ids=range(1, 20_000, 2))
    write(topic, writer, large)
    assert last(topic) == large


def test_an_open_transaction_is_waited_for(topic, writer):
    """Above it an entry could hide; the owner's init ends its own, a stranger's is reported."""
    write(topic, writer, entry(1))
    write(topic, writer, entry(2), end="")
    with pytest.raises(LedgerUnreachable, match="still holds an open transaction"):
        last(topic, within_s=0.5)
    writer.commit_transaction(10)
    assert last(topic).batch == 2


def test_a_successor_sees_right_after_init_what_was_committed(topic, bootstrap_servers):
    name, seen = uuid.uuid4().hex, []
    for batch in range(1, 6):
        producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": name, "retry.backoff.ms": 2})
        producer.init_transactions(20)
        seen.append(last(topic))
        write(topic, producer, entry(batch))
        write(topic, producer, entry(batch + 100), end="")  # left open
    assert [found and found.batch for found in seen] == [None, 1, 2, 3, 4]


def test_compaction_leaves_the_last_entry(bootstrap_servers, writer):
    name = f"ledger-{uuid.uuid4().hex[:8]}"
    eager = {"min.cleanable.dirty.ratio": "0.01", "segment.ms": "100", "delete.retention.ms": "100"}
    create_topic(bootstrap_servers, 1, name, **{"cleanup.policy": "compact", **eager})
    topic = LedgerTopic({"bootstrap.servers": bootstrap_servers}, name)
    for batch in range(1, 31):
        write(topic, writer, entry(batch))
    time.sleep(0.3)
    write(topic, writer, entry(31))
    assert last(topic).batch == 31
    topic.close()


def ask_until_it_fails(topic):
    """Brokers may know a deleted topic for a moment still."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        last(topic)


def test_a_deleted_topic_is_missing_and_made_again(topic, bootstrap_servers):
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.delete_topics([topic.name])[topic.name].result(20)
    with pytest.raises(LedgerMissing):
        ask_until_it_fails(topic)
    topic.prepare(2, 3600)
    assert last(topic) is None


def test_a_client_that_never_saw_the_topic_knows_that_it_is_missing(topic, bootstrap_servers):
    """Not that a broker is: that would be tried again for ever, and nobody would learn that the ledger is gone."""
    with pytest.raises(LedgerMissing):
        last(LedgerTopic({"bootstrap.servers": bootstrap_servers}, "never-made"))
    with pytest.raises(LedgerMissing):
        last(LedgerTopic({"bootstrap.servers": bootstrap_servers}, topic.name), lane=7)


def test_brokers_that_do_not_answer(monkeypatch):
    monkeypatch.setattr("outbox.edges.kafka.exactly_once.ledger_topic._REQUEST_S", 1.0)
    topic = LedgerTopic({"bootstrap.servers": "127.0.0.1:1"}, "ledger")
    with pytest.raises(LedgerUnreachable):
        topic._high_watermark(0)
    topic.close()


def test_a_topic_that_would_forget_is_refused_with_the_command(bootstrap_servers):
    name = create_topic(bootstrap_servers, 1, **{"cleanup.policy": "compact,delete"})
    topic = LedgerTopic({"bootstrap.servers": bootstrap_servers}, name)
    with pytest.raises(LedgerRefused, match=r"kafka-configs.sh .* --add-config cleanup.policy=compact"):
        topic.prepare(1, 3600)
    with pytest.raises(LedgerRefused, match=r"has 1 partitions, but needs 3"):
        topic.prepare(3, 3600)
    topic.close()


def test_the_limits_of_many_topics_are_one_question(topic, bootstrap_servers, monkeypatch):
    """The lanes of a process wait for it. A topic without an answer takes nothing from the others."""
    limits = {create_topic(bootstrap_servers, 1, **{"max.message.bytes": str(size)}): size for size in (5000, 6000)}
    asked, describe = [], AdminClient.describe_configs

    def describe_configs(self, resources, **options):
        asked.append(len(resources))
        return describe(self, resources, **options)

    monkeypatch.setattr(AdminClient, "describe_configs", describe_configs)
    assert topic.size_limits({"a-missing-topic", *limits}) == limits
    assert asked == [3]


ASKING = """
import os, sys, time
from outbox.edges.kafka.exactly_once import ledger_topic

ledger_topic._REQUEST_S = 1.0
servers, name, question = sys.argv[1:]
topic = ledger_topic.LedgerTopic({"bootstrap.servers": servers}, name)
print("asking", flush=True)
try:
    if question == "where it ends":
        topic._stable_from(0, 0)
    else:
        list(topic._between(0, 0, 1000, time.monotonic() + 3))
except ledger_topic.LedgerUnreachable:
    print("told", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("question", ["where it ends", "what is in it"])
def test_a_question_without_an_answer_ends_when_the_clock_is_set_back_meanwhile(
    topic, bootstrap_servers, tmp_path, question
):
    clock = WallClock(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = bootstrap_servers if question == "what is in it" else f"127.0.0.1:{silent.getsockname()[1]}"
        asking = subprocess.Popen(
            [sys.executable, "-c", ASKING, servers, topic.name, question],
            env={**os.environ, **clock.environment},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert asking.stdout.readline() == "asking\n"
            time.sleep(0.5)
            clock.set(-3600)
            assert asking.communicate(timeout=30)[0] == "told\n"
        finally:
            asking.kill()
            asking.wait()
