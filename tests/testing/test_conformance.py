"""One suite on both: the kit's harvesting into memory, and the harvester's worker on a real Kafka."""

import os

import pytest
from django.conf import settings
from django.db import connection
from django.test import override_settings

from outbox.core.at_least_once.values import RecordHeld
from outbox.testing import MemoryBroker, OutboxKit
from outbox.testing.broker import murmur2, partition_of
from tests.harvest.exactly_once.bench import Bench, wait_until
from tests.support.databases import fresh_database
from tests.support.topics import create_topic, read_topic

pytestmark = pytest.mark.django_db  # of the memory's table; the other one is in a database of its own

INSERT = (
    "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_value_binary, kafka_header_keys,"
    " kafka_header_values) VALUES (%s, %s, %s, %s, %s::text[], %s::text[]) RETURNING id"
)
PAUSE = "INSERT INTO outbox_hold (topic, key, lane, reason) VALUES (%s, %s, %s, 'paused')"
RESUME = "DELETE FROM outbox_hold WHERE reason = 'paused'"
DEAD = (
    "SELECT record_id, topic, key, value, value_binary, header_keys, header_values, reason, error_code, attempts "
    "FROM outbox_dead ORDER BY record_id"
)
UPDATE = "UPDATE outbox SET kafka_value = %s WHERE id = %s"


def row(topic, key="", value=None, binary=None, names=(), texts=()):
    return [topic, key, value, binary, list(names), list(texts)]


class MemoryWorld:
    def __init__(self):
        self.kit = OutboxKit(broker=MemoryBroker(auto_create_topics=False))

    def create(self, name, partitions=1, max_bytes=None):
        given = {} if max_bytes is None else {"max_message_bytes": max_bytes}
        self.kit.broker.create_topic(name, partitions, **given)

    def insert(self, rows):
        ids = []
        with connection.cursor() as cursor:
            for found in rows:
                cursor.execute(INSERT, found)
                ids.append(cursor.fetchone()[0])
        return ids

    def harvest(self, left, *, is_refused=True, attempts=1, **given):
        with override_settings(OUTBOX={**settings.OUTBOX, **given}):
            for _ in range(attempts):
                self.kit.advance(60)
                self.kit.harvest_all()
        assert len(self.kit.pending) == left
        return {held.record_id: held.error for held in self.kit.held.values()}

    def edit(self, id_, value):
        self.execute(UPDATE, value, id_)

    def execute(self, statement, *given):
        with connection.cursor() as cursor:
            cursor.execute(statement, given)
            return cursor.fetchall() if cursor.description else []

    def read(self, topic):
        return [(m.partition, m.key, m.value, list(m.headers)) for m in self.kit.broker.messages(topic)]


class KafkaWorld:
    def __init__(self, bench):
        self.bench = bench

    def create(self, name, partitions=1, max_bytes=None):
        config = {} if max_bytes is None else {"max.message.bytes": str(max_bytes)}
        create_topic(self.bench.servers, partitions, name, **config)

    def insert(self, rows):
        with self.bench.db.transaction():
            return [self.bench.db.execute(INSERT, found).fetchone()[0] for found in rows]

    def harvest(self, left, *, is_refused=True, attempts=1, **given):
        with self.bench.working(**given) as host:
            wait_until(lambda: self.bench.count == left)
            if left and is_refused:
                wait_until(lambda: host.of(RecordHeld))
            assert not host.errors
            return {event.id: event.error for event in host.of(RecordHeld)}

    def edit(self, id_, value):
        self.execute(UPDATE, value, id_)

    def execute(self, statement, *given):
        found = self.bench.db.execute(statement, given)
        return found.fetchall() if found.description else []

    def read(self, topic):
        found = read_topic(self.bench.servers, topic)
        return [(m.partition, m.key, m.value, m.headers) for m in found]


@pytest.fixture(params=["memory", "kafka"])
def world(request):
    if request.param == "memory":
        yield MemoryWorld()
        return
    request.getfixturevalue("postgres")
    servers = request.getfixturevalue("bootstrap_servers")
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        bench = Bench(url, servers)
        yield KafkaWorld(bench)
        bench.db.close()


@pytest.fixture
def topic(request):
    return f"{request.node.name.translate(str.maketrans('[]', '--'))}-{os.getpid()}"


@pytest.mark.part
def test_every_byte_arrives_in_order_on_the_same_partition(world, topic):
    world.create(topic, partitions=5)
    keys = ["a", "bb", "ccc", "dddd", "ü€𝄞", "x" * 90, "key with spaces", "21", "foobar"]
    rows = [row(topic, key, f"{key}-{turn}") for turn in range(20) for key in keys]
    rows += [
        row(topic, "tombstone"),
        row(topic, "text", "ü€𝄞"),
        row(topic, "empty", ""),
        row(topic, "binary", binary=b"\x00\xff"),
        row(topic, "headers", "v", names=["a", "b", "a"], texts=["1", "", "ü"]),
    ]
    ids = world.insert(rows)
    assert world.harvest(left=0) == {}
    by_id = dict(zip(ids, rows, strict=True))
    found = world.read(topic)
    assert sorted(int(headers[-1][1]) for _, _, _, headers in found) == ids
    order = {}
    for partition, key, value, headers in found:
        name, text = headers.pop()
        assert name == "outbox-id"
        sent = by_id[int(text)]
        assert key == sent[1].encode()
        assert value == (sent[3] if sent[3] is not None else None if sent[2] is None else sent[2].encode())
        assert headers == [(name, text.encode()) for name, text in zip(sent[4], sent[5], strict=True)]
        order.setdefault((partition, key), []).append(int(text))
    assert all(numbers == sorted(numbers) for numbers in order.values())
    assert {key: partition for partition, key in order} == {key: partition_of(key, 5) for _, key in order}


def test_the_partitions_are_those_of_the_java_client():
    """The numbers are those of the Java client's own tests."""
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    assert {text: (murmur2(text) ^ 1 << 31) - (1 << 31) for text in known} == known


def test_the_empty_key_is_no_key(world, topic):
    world.create(topic)
    world.insert([row(topic, "", str(number)) for number in range(3)])
    world.harvest(left=0)
    assert [(key, value) for _, key, value, _ in world.read(topic)] == [(None, b"0"), (None, b"1"), (None, b"2")]


def test_a_refused_record_holds_back_its_key_alone_until_it_is_edited(world, topic):
    world.create(topic, max_bytes=3000)
    large = os.urandom(4000).hex()
    rows = [row(topic, "poison", "1"), row(topic, "poison", large), row(topic, "poison", "3"), row(topic, "", "free")]
    ids = world.insert([*rows, *(row(topic, f"other-{n}", "v") for n in range(20))])
    held = world.harvest(left=2)
    assert list(held) == [ids[1]]
    assert "MSG_SIZE_TOO_LARGE" in held[ids[1]]
    assert len(world.read(topic)) == 22
    world.edit(ids[1], "2")
    world.harvest(left=0)
    assert [value for _, key, value, _ in world.read(topic) if key == b"poison"] == [b"1", b"2", b"3"]


def test_a_missing_topic_holds_back_its_own_records_until_it_is_there(world, topic):
    world.create(topic)
    ids = world.insert([row(f"{topic}-late", "k", "1"), row(topic, "k", "v"), row(f"{topic}-late", "l", "2")])
    held = world.harvest(left=2)
    assert list(held) == [ids[0]]
    assert "UNKNOWN_TOPIC" in held[ids[0]]
    assert len(world.read(topic)) == 1
    world.create(f"{topic}-late")
    world.harvest(left=0)
    assert [value for _, _, value, _ in world.read(f"{topic}-late")] == [b"1", b"2"]


@pytest.mark.parametrize("attempts", [1, 2])
def test_skip_makes_a_dead_letter_and_the_key_goes_on(world, topic, attempts):
    world.create(topic, max_bytes=3000)
    large = os.urandom(4000).hex()
    rows = [row(topic, "k", "1"), row(topic, "k", large, names=["h"], texts=["t"]), row(topic, "k", "3"), row(topic)]
    ids = world.insert(rows)
    world.harvest(left=0, attempts=attempts, REJECTION_POLICIES={topic: "skip"}, REJECTION_ATTEMPTS=attempts)
    assert [value for _, key, value, _ in world.read(topic) if key == b"k"] == [b"1", b"3"]
    [found] = world.execute(DEAD)
    assert found == (
        ids[1], topic, "k", large, None, ["h"], ["t"], "rejected", "MSG_SIZE_TOO_LARGE", attempts,
    )  # fmt: skip


def test_no_record_of_a_topic_at_fault_becomes_a_dead_letter(world, topic):
    world.insert([row(topic, "k", "1"), row(topic, "l", "2")])
    world.harvest(left=2, attempts=2, REJECTION_POLICY="skip")
    assert world.execute(DEAD) == []


@pytest.mark.parametrize("what", ["topic", "key", "lane"])
def test_what_is_paused_waits_and_goes_on_in_order(world, topic, what):
    world.create(topic)
    world.create(f"{topic}-other")
    world.insert([row(topic, "k", "1"), row(f"{topic}-other", "k", "o"), row(topic, "l", "2"), row(topic, "k", "3")])
    scope = {"topic": (topic, None, None), "key": (topic, "k", None), "lane": ("", None, 0)}[what]
    world.execute(PAUSE, *scope)
    left = {"topic": 3, "key": 2, "lane": 4}[what]
    world.harvest(left=left, is_refused=False)
    assert len(world.read(topic)) + len(world.read(f"{topic}-other")) == 4 - left
    world.execute(RESUME)
    world.harvest(left=0)
    assert [value for _, key, value, _ in world.read(topic) if key == b"k"] == [b"1", b"3"]


def test_an_empty_key_that_is_kept_is_held_like_any_other(world, topic):
    world.create(topic, max_bytes=3000)
    ids = world.insert([row(topic, "", os.urandom(4000).hex()), row(topic, "", "behind"), row(topic, "k", "free")])
    assert list(world.harvest(left=2, KEEP_EMPTY_KEY=True)) == [ids[0]]
    world.edit(ids[0], "small")
    world.harvest(left=0, KEEP_EMPTY_KEY=True)
    assert [value for _, key, value, _ in world.read(topic) if key == b""] == [b"small", b"behind"]
