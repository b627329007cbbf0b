"""The at-least-once worker while parts of it break, and the number of its database statements."""

import re
import threading
import time
import uuid
from functools import partial
from itertools import groupby
from urllib.parse import urlsplit

import psycopg
import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from outbox.core.at_least_once.values import RecordHeld
from outbox.edges.kafka.at_least_once.idempotent import Producers
from outbox.edges.kafka.common.clients import idempotent_producer
from outbox.edges.postgres.at_least_once.marks import Marks
from outbox.edges.postgres.common.table import connect_bounded
from outbox.exceptions import OutboxError
from outbox.harvest import Harvester, State
from outbox.harvest.at_least_once.lane import AtLeastOnce
from tests.harvest import hosts
from tests.harvest.hosts import finish, wait_until
from tests.parity.loopback import Loopback
from tests.support.proxy import TO_SERVER, Proxy
from tests.support.topics import create_topic

SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outbox harvest' AND datname = current_database()"
)


def real_harvester(bench, name=None, **seams):
    """A harvester whose worker is the real one, on the table of the bench."""
    conf = hosts.settings(BOOTSTRAP_SERVERS=bench.servers, NAME=name or f"p{uuid.uuid4().hex[:12]}")
    factory = partial(AtLeastOnce, connect=hosts.connector(bench.url), **seams)
    return Harvester(conf, worker_factory=factory, check_table=lambda *_: None)


# ---- the whole life


def test_a_whole_life_leaves_neither_connections_nor_members(bench):
    bench.insert(["a", "b"])
    one = real_harvester(bench)
    assert one.state is State.CREATED
    with one:
        assert one.state is State.RUNNING
        bench.wait_empty()
        assert bench.db.execute(SESSIONS).fetchone()[0] > 0
    assert one.state is State.STOPPED
    wait_until(lambda: bench.db.execute(SESSIONS).fetchone() == (0,))
    admin = AdminClient({"bootstrap.servers": bench.servers})
    group = admin.describe_consumer_groups([one.conf.name])[one.conf.name].result(10)
    assert (group.state, list(group.members)) == (ConsumerGroupState.EMPTY, [])


def test_a_producer_that_cannot_be_made_ends_the_harvester_with_the_cause(bench, heard):
    def broken(properties):
        raise RuntimeError("no producer: simulated")

    bench.insert(["a"])
    one = real_harvester(bench, make_producer=broken).start()
    with pytest.raises(RuntimeError, match="no producer: simulated"):
        one.wait(30)
    assert one.state is State.STOPPED
    assert [name for name, _ in heard].count("leader_acquired") == 1
    wait_until(lambda: bench.db.execute(SESSIONS).fetchone() == (0,))
    assert bench.count == 1


def test_a_rebalance_continues_while_the_database_is_silent_and_another_leads(bench, started):
    """A coordinator that obeys, the real worker: the lane is given back in time, and the next owner harvests."""
    conf = hosts.settings(BOOTSTRAP_SERVERS=bench.servers, HEARTBEAT_TIMEOUT=1, SESSION_TIMEOUT=4, FLUSH_TIMEOUT=2)
    with Proxy(target=urlsplit(bench.url).port) as proxy:
        connect = hosts.connector(proxy.rewrite(bench.url), 60)
        first = started.standing(conf=conf, worker_factory=partial(AtLeastOnce, connect=connect))
        first.clients.standing.assign_lanes(0)
        bench.insert(["a"] * 10)
        bench.wait_empty()
        proxy.hold(TO_SERVER)
        bench.insert(["a"] * 10)
        began = time.monotonic()
        first.clients.standing.revoke_lanes(0)
        assert time.monotonic() - began < 6
        assert not first.is_leader
        direct = partial(AtLeastOnce, connect=hosts.connector(bench.url))
        second = started.standing(Loopback(first.clients.log), conf=conf, worker_factory=direct)
        second.clients.standing.assign_lanes(0)
        bench.wait_empty()
        proxy.heal()
    assert [int(record.value) for record in bench.read()] == [*range(1, 11)] * 2


@pytest.mark.parametrize("where", ["KAFKA", "PRODUCER"])
def test_an_unknown_property_of_a_client_ends_the_harvester_and_is_named(bench, where):
    bench.insert(["a"])
    name = f"p{uuid.uuid4().hex[:12]}"
    conf = hosts.settings(BOOTSTRAP_SERVERS=bench.servers, NAME=name, **{where: {"no.such.property": 1}})
    factory = partial(AtLeastOnce, connect=hosts.connector(bench.url))
    one = Harvester(conf, worker_factory=factory, check_table=lambda *_: None).start()
    with pytest.raises(OutboxError, match=r"no\.such\.property.*Correct KAFKA or PRODUCER"):
        one.wait(30)
    assert one.state is State.STOPPED


def test_a_break_in_the_handling_of_reports_ends_the_worker_with_the_cause(bench):
    def broken(*arguments):
        raise RuntimeError("simulated")

    with bench.working() as host:
        host.worker._board.acknowledged = broken
        bench.insert(["a"])
        assert "simulated" in str(wait_until(lambda: host.errors)[0])
        assert host.worker.join(10)
        assert bench.count == 1


def test_what_a_client_says_beside_reports_changes_nothing(bench):
    """Statistics, throttling and log lines of the client are no reports."""
    with bench.working(PRODUCER={"statistics.interval.ms": 20, "debug": "broker"}) as host:
        bench.insert([f"k{n}" for n in range(50)])
        bench.wait_empty()
        finish(host)
    assert len(bench.read()) == 50
    assert (host.errors, host.events) == ([], [])


@pytest.mark.parametrize("producers", [1, 2])
def test_one_or_more_producers_send_what_they_are_given(bench, producers):
    made = []

    def make(properties):
        made.append(idempotent_producer(properties))
        return made[-1]

    bench.insert([f"k{n % 20}" for n in range(200)])
    with bench.working(SEND_CONCURRENCY=producers, seams={"make_producer": make}) as host:
        bench.wait_empty()
        finish(host)
    assert len(made) == producers
    assert sorted(int(record.value) for record in bench.read()) == list(range(1, 201))


def test_what_is_not_acknowledged_in_time_is_given_up(bench):
    """Ten records that nobody acknowledges: the leadership ends in time, and they stay in the table."""
    bench.insert([f"k{n}" for n in range(10)])
    with bench.working(servers="127.0.0.1:1", DELIVERY_TIMEOUT=50) as host:
        wait_until(lambda: host.worker.statistics().in_flight == 10)
        finish(host, within_s=1)
        assert host.worker.statistics().phase == "ended"
    assert bench.count == 10


class Producer:
    """The real producer, but the first produce of the key "bad" is handled by `answers`. `made` lists all producers."""

    def __init__(self, properties, answers, made):
        self.real, self.answers, self.made = idempotent_producer(properties), answers, made
        made.append(self)

    def produce(self, topic, value, key, *, headers, on_delivery):
        if key == "bad" and self.answers:
            self.answers.pop()(on_delivery)
        else:
            self.real.produce(topic, value, key, headers=headers, on_delivery=on_delivery)

    def __getattr__(self, name):
        return getattr(self.real, name)

    def __len__(self):
        return len(self.real)


def delivered_by(bench, answer, *, may_repeat=False):
    """Harvest with one producer that handles its first record of the key "bad" with `answer`. `may_repeat`: other
    records in flight may be sent again."""
    made = []
    bench.insert(["bad", "good"] * 10)
    make = partial(Producer, answers=[answer], made=made)
    with bench.working(SEND_CONCURRENCY=1, seams={"make_producer": make}) as host:
        bench.wait_empty()
        finish(host)
    assert host.errors == host.of(RecordHeld) == []
    found = bench.by_key()
    if may_repeat:
        found = {key: [value for value, _ in groupby(values)] for key, values in found.items()}
    assert found == {"bad": list(range(1, 20, 2)), "good": list(range(2, 21, 2))}
    return host, made


def test_an_error_of_produce_concerns_its_record_alone(bench):
    """Its key waits a moment; nothing is rebuilt, nothing is repeated, the leader id stays."""

    def fails(on_delivery):
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "simulated"))

    host, made = delivered_by(bench, fails)
    assert (len(made), host.refreshes) == (1, 0)


def test_a_producer_that_fails_for_good_is_replaced_by_another(bench):
    def fails(on_delivery):
        threading.Timer(0.05, on_delivery, [KafkaError(KafkaError._FATAL, "simulated", fatal=True), None]).start()

    host, made = delivered_by(bench, fails, may_repeat=True)
    assert (len(made), host.refreshes) == (2, 0)


# ---- its database statements


def test_purges_take_many_records_at_once(bench, monkeypatch):
    purges = []
    purge = Marks.purge

    def counted(self, db, leader, ids):
        deleted = purge(self, db, leader, ids)
        purges.append(len(deleted))  # a stop repeats a purge whose answer it has not seen
        return deleted

    monkeypatch.setattr(Marks, "purge", counted)
    bench.insert([f"k{n}" for n in range(5000)])
    with bench.working():
        bench.wait_empty()
    assert sum(purges) == 5000
    assert len(purges) <= 500, "one statement per ten records at the most"


def test_purge_and_reset_say_how_many_rows_were_theirs(bench):
    [first, second] = bench.insert(["a", "b"])
    leader = uuid.uuid4()
    with connect_bounded({"conninfo": bench.url}, statement_timeout_s=5) as db:
        marks = Marks("outbox")
        assert marks.take(db, 1, 5)
        assert len(marks.mark(db, leader, 10)) == 2
        assert marks.reset(db, leader, [first]) == 1
        assert marks.reset(db, leader, [first]) == 0
        assert marks.purge(db, leader, [second]) == [second]
        assert marks.purge(db, leader, [second]) == []
        bench.db.execute("ALTER TABLE outbox DROP leader_id")
        for statement in (marks.purge, marks.reset):
            with pytest.raises(psycopg.errors.UndefinedColumn):
                statement(db, leader, [first])


def test_a_column_of_a_wrong_type_is_an_error_and_marks_nothing(bench):
    bench.insert(["a"])
    bench.db.execute("ALTER TABLE outbox ALTER kafka_header_keys DROP DEFAULT")
    bench.db.execute("ALTER TABLE outbox ALTER kafka_header_keys TYPE int USING 1")
    with connect_bounded({"conninfo": bench.url}, statement_timeout_s=5) as db:
        marks = Marks("outbox")
        assert marks.take(db, 1, 5)
        with pytest.raises(psycopg.errors.UndefinedFunction, match="array_cat"):
            marks.mark(db, uuid.uuid4(), 10)
    assert bench.db.execute("SELECT leader_id FROM outbox").fetchone() == (None,)


def test_ids_that_commit_out_of_turn_crash_nothing(bench):
    """One producer for all keys: a lower id of another key is sent after a higher one."""
    with psycopg.connect(bench.url) as slow, bench.working(SEND_CONCURRENCY=1) as host:
        slow.execute("INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, 'late', '1')", [bench.topic])
        bench.insert(["early"])
        wait_until(lambda: bench.count == 0)
        slow.commit()
        wait_until(lambda: host.worker.statistics().delivered == 2)
        bench.wait_empty()
    assert host.errors == []
    assert set(bench.by_key()) == {"early", "late"}


# ---- partitions


def murmur2(data):
    """As in org.apache.kafka.common.utils.Utils, on unsigned numbers."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    for at in range(0, len(data) // 4 * 4, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if rest := data[len(data) // 4 * 4 :]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def test_the_reference_of_the_partitions_is_that_of_the_java_client():
    """The numbers are those of the Java client's own tests."""
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    assert {text: (murmur2(text) ^ 1 << 31) - (1 << 31) for text in known} == known


def test_a_key_goes_to_the_partition_where_the_java_client_puts_it(bench):
    topic = create_topic(bench.servers, 7)
    keys = [f"key-{n}" for n in range(100)] + ["ü", "x" * 100]
    bench.insert(keys, topic=topic)
    with bench.working():
        bench.wait_empty()
    found = {record.key: record.partition for record in bench.read(topic)}
    assert found == {key.encode(): (murmur2(key.encode()) & 0x7FFFFFFF) % 7 for key in keys}


def test_bytes_and_the_empty_and_the_absent_arrive_as_they_were(bench):
    """Values byte for byte; the row's times and ids are not part of the message."""
    bench.db.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_value_binary, kafka_header_keys, "
        "kafka_header_values) VALUES (%(t)s, 'k', NULL, '\\x00ff00', '{a}', '{\"\"}'), (%(t)s, 'k', '', NULL, '{}', "
        "'{}'), (%(t)s, 'k', NULL, NULL, '{}', '{}'), (%(t)s, '', NULL, '', '{}', '{}')",
        {"t": bench.topic},
    )
    with bench.working():
        bench.wait_empty()
    found = [(r.key, r.value, r.headers) for r in bench.read()]
    assert [f for f in found if f[0]] == [(b"k", b"\x00\xff\x00", [("a", b"")]), (b"k", b"", []), (b"k", None, [])]
    assert [f for f in found if not f[0]] == [(None, b"", [])]


def test_heartbeats_name_the_member_and_take_no_partition_but_their_lane(bench):
    one = real_harvester(bench)
    with one:
        wait_until(lambda: one.is_leader)
    consumer = Consumer({"bootstrap.servers": bench.servers, "group.id": "look"})
    consumer.assign([TopicPartition(one.conf.election.leader_topic, 0, 0)])
    message = wait_until(lambda: consumer.poll(0.1))
    consumer.close()
    assert message.key() is None
    assert re.fullmatch(rf"outbox1 [0-9a-f-]+ [0-9a-f-]+ \d+ -1 {re.escape(one.member_name)}", message.value().decode())


def test_a_generation_that_was_dropped_takes_no_more(bench):
    """Passing records to producers that have ended never blocks, and sends none of them."""
    from outbox.edges.postgres.at_least_once.marks import MarkedRow

    producers = Producers({"bootstrap.servers": bench.servers}, delivery_timeout_s=5)
    producers.drop()
    producers.send(0, [MarkedRow(1, bench.topic, "k", b"v", None, None, b"")])
    assert [number for number, _ in producers.undelivered] == [1]
    assert bench.read() == []
