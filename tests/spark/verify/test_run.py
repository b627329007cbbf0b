"""The verification, on a real Kafka and table: what was delivered well passes, and every planted fault is found and
named."""

import dataclasses
import json
import re
import threading
import time
import uuid
from datetime import UTC, datetime
from io import StringIO
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from django.core.management import CommandError, call_command
from django.db import connection
from py4j.protocol import Py4JNetworkError

from outbox.core.exactly_once import ledger
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerTopic
from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer, properties_of
from outbox.management.commands import outbox_verify
from outbox.spark import KafkaSink
from outbox.spark.sink import sql_expressions
from outbox.spark.verify import run
from outbox.spark.verify.findings import VerificationImpossible, VerificationRequest, store
from outbox.spark.verify.reading import Offsets, java_properties
from tests.support.topics import create_topic

DATABASE, OWNER = uuid.uuid4(), uuid.uuid4()
BATCH = 10


class Delivered:
    """Batches as a harvester delivers them: the same producer, the same entries. `changed` plants a fault: it gets the
    batch's number and rows, and gives what Kafka receives; the entry stays the honest one."""

    def __init__(self, servers, name, lanes):
        self.servers, self.ledger = servers, f"{name}.ledger"
        LedgerTopic({"bootstrap.servers": servers}, self.ledger).prepare(lanes, 3600)

    def lane(self, lane, topic, batches=3, changed=lambda batch, rows: rows, keys=1):
        properties = properties_of(
            {"bootstrap.servers": self.servers}, f"{self.ledger}-{lane}", transaction_timeout_s=30
        )
        producer = TransactionalProducer(properties, id_header="outbox-id")
        producer.initialise(30)
        for batch in range(1, batches + 1):
            rows = [row(first_id(lane, batch) + n, topic, keys) for n in range(BATCH)]
            producer.begin()
            producer.send(changed(batch, rows), time.monotonic() + 30)
            entry = ledger.Entry(
                lane, batch, OWNER, DATABASE, tuple(r[0] for r in rows), ledger.digest(rows), datetime.now(UTC)
            )
            producer.send_entry(self.ledger, lane, ledger.entry_key(lane), ledger.encode(entry))
            producer.commit(30)
        producer.drop_and_wait()


def first_id(lane, batch):
    return 1 + 1000 * lane + BATCH * (batch - 1)


def row(id_, topic, keys):
    """Of every shape that a record may have."""
    value, binary = (None, bytes([0xFF, id_ % 256])) if id_ % 5 == 1 else (f"wert ü {id_}", None)
    if id_ % 5 == 2:
        value = None
    headers = (["h", "ö"], [f"v{id_}", ""]) if id_ % 3 == 0 else ([], [])
    return id_, topic, f"schlüssel {id_ % keys}", value, *headers, binary


@pytest.fixture
def name():
    return f"verification-{uuid.uuid4().hex[:8]}"


def request_of(outbox_table, servers, ledgers, *topics):
    ledgers = (ledgers,) if isinstance(ledgers, str) else ledgers
    return VerificationRequest(
        {"conninfo": outbox_table.url}, outbox_table.table, {"bootstrap.servers": servers}, ledgers, topics
    )


def insert(outbox_table, id_):
    outbox_table.run("INSERT INTO {table} (id, kafka_topic, kafka_key) VALUES (%s, 't', 'k')", id_)


@pytest.mark.part
def test_a_clean_delivery_passes_and_every_fault_is_reported(spark, outbox_table, bootstrap_servers, name):
    """By a harvester of two lanes and by two sinks, each judged by its ledger. The order of another column than the id
    is not judged."""
    *topics, sunk, turned = topics_of_all = [create_topic(bootstrap_servers, 2) for _ in range(4)]
    delivered = Delivered(bootstrap_servers, name, 2)
    for lane, topic in enumerate(topics):
        delivered.lane(lane, topic, keys=3)
    sink = KafkaSink(name, bootstrap_servers, slices=2, id_header="outbox-id")
    frame = spark.range(1031, 1131).selectExpr(
        "id", f"'{sunk}' AS topic", "concat('k', id % 40) AS key", "if(id % 4 = 0, null, concat('v', id)) AS value",
        "array(named_struct('key', 'h', 'value', cast('v' AS binary))) AS headers",
    )  # fmt: skip
    sink.write(frame, 0)
    sink.write(frame.limit(0), 1)
    by_time = KafkaSink(f"{name}-time", bootstrap_servers, slices=1, order=("ts",), id_header="outbox-id")
    by_time.write(
        spark.range(1131, 1141).selectExpr("id", f"'{turned}' AS topic", "'k' AS key", "'v' AS value", "-id AS ts")
    )
    insert(outbox_table, 40)  # waits
    insert(outbox_table, first_id(1, 3))  # of the last batch: not deleted yet
    ledgers = (delivered.ledger, sink.ledger, by_time.ledger)
    result = run.verify(spark, request_of(outbox_table, bootstrap_servers, ledgers, *topics_of_all))
    assert result.faults == ()
    assert (result.batches, result.records, result.read) == (6 + 2 + 1, 60 + 100 + 10, 60 + 100 + 10)
    assert (result.waiting, result.absent, result.absent_first) == (2, 1000 - 30 - 1, (31, 32, 33, 34, 35))
    assert result.unordered == (by_time.ledger,)
    assert any(by_time.ledger in line for line in result.lines())
    assert result.lines()[-1] == "result: nothing lost, nothing twice, order kept"
    assert not store(request := request_of(outbox_table, bootstrap_servers, delivered.ledger), result)
    outbox_table.run("INSERT INTO {state} (lanes) VALUES (2)")
    assert store(request, result)
    [[stored]] = outbox_table.run("SELECT verification FROM {state}")
    assert stored == json.loads(json.dumps(result.as_dict()))


def test_every_planted_fault_is_found(spark, outbox_table, bootstrap_servers, name):
    def removed(batch, rows):
        return rows[:4] + rows[5:] if batch == 2 else rows

    def doubled(batch, rows):
        return [*rows[:5], rows[4], *rows[5:]] if batch == 2 else rows

    def swapped(batch, rows):
        return [*rows[:4], rows[5], rows[4], *rows[6:]] if batch == 2 else rows

    def altered(batch, rows):
        return [*rows[:4], (*rows[4][:4], ["other"], ["header"], rows[4][6]), *rows[5:]] if batch == 2 else rows

    def missing(batch, rows):
        return [] if batch == 2 else rows

    def unlisted(batch, rows):
        return [*rows, row(77_777, rows[0][1], 1)] if batch == 2 else rows

    plants = [removed, doubled, swapped, altered, missing, unlisted]
    topics = [create_topic(bootstrap_servers, 1, f"{name}-{plant.__name__}") for plant in plants]
    delivered = Delivered(bootstrap_servers, name, len(plants))
    for lane, (topic, plant) in enumerate(zip(topics, plants, strict=True)):
        delivered.lane(lane, topic, changed=plant)
    insert(outbox_table, first_id(5, 2))
    result = run.verify(spark, request_of(outbox_table, bootstrap_servers, delivered.ledger, *topics))
    assert [(fault.kind, fault.count) for fault in result.faults] == [
        ("missing batch", 1), ("lost", 1), ("twice", 1), ("altered", 1), ("order", 1), ("unlisted", 1),
        ("not deleted", 1),
    ]  # fmt: skip
    said = "\n".join(result.lines())
    for expected in (
        r"the first is batch 2 of lane 4",
        r"the first is id 15 of batch 2 of lane 0 .* lacks 1",
        r"the first is id 1015 of batch 2 of lane 1 .*-doubled\[0\] offset 15 and .*-doubled\[0\] offset 16",
        r"the first is batch 2 of lane 3 .* each id as listed, digest \d+ instead of \d+",
        r"the first is id 2015 of batch 2 of lane 2 .*-swapped\[0\] offset 16: it follows id 2016 of batch 2",
        r"the first is id 77777, .*-unlisted\[0\]",
        r"the first is id 5011",
        r"^result: 7 kinds of fault",
    ):
        assert re.search(expected, said, re.MULTILINE), (expected, said)


def fanned(spark, topics, first=1, count=40):
    """Each id goes to every topic, and so to several slices; to the first one twice."""
    parts = [
        spark.range(first, first + count).selectExpr(
            "id", f"'{topic}' AS topic", "concat('k', id % 20) AS key", f"'{number}' AS value"
        )
        for number, topic in enumerate([*topics, topics[0]])
    ]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.union(part)
    return whole


def test_records_that_share_an_id_are_counted_as_they_are_listed(spark, outbox_table, bootstrap_servers, name):
    """A transformation sends each to a second topic, and takes others apart. An id that two epochs deliver is doubled,
    also where other ids are listed twice for good."""
    topics = [create_topic(bootstrap_servers, 1) for _ in range(2)]
    sink = KafkaSink(name, bootstrap_servers, slices=3, id_header="outbox-id")
    for epoch in range(2):
        sink.write(fanned(spark, topics, 1 + 100 * epoch), epoch)
    request = request_of(outbox_table, bootstrap_servers, sink.ledger, *topics)
    result = run.verify(spark, request)
    assert (result.faults, result.records, result.read) == ((), 240, 240)
    sink.write(fanned(spark, topics[:1], count=1), 2)
    (fault,) = run.verify(spark, request).faults
    assert (fault.kind, fault.count) == ("twice", 1)
    assert "id 1 of batch 2" in fault.first


def test_faults_among_records_that_share_an_id_are_found(spark, outbox_table, bootstrap_servers, name, monkeypatch):
    """What is in Kafka more often than the ledger lists it, what is missing, and what is altered."""
    unread, *topics = [create_topic(bootstrap_servers, 1) for _ in range(6)]

    def sink(kind, first, *its_topics):
        made = KafkaSink(f"{name}-{kind}", bootstrap_servers, slices=2, id_header="outbox-id")
        made.write(fanned(spark, its_topics, first))
        return made.ledger

    ledgers = [sink("lost", 1001, topics[0], unread), sink("twice", 2001, *topics[1:3])]
    real = sql_expressions.checksum_sql
    monkeypatch.setattr(sql_expressions, "checksum_sql", lambda columns: f"{real(columns)} + IF(id = 3007, 1, 0)")
    ledgers.append(sink("altered", 3001, *topics[3:]))
    monkeypatch.undo()
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(topics[2], "0", "k0", headers={"outbox-id": "2040"})
    producer.flush()
    faults = run.verify(spark, request_of(outbox_table, bootstrap_servers, ledgers, *topics)).faults
    lost, twice, altered = faults
    assert (lost.kind, twice.kind, twice.count, altered.kind, altered.count) == ("lost", "twice", 1, "altered", 1)
    assert re.search(rf"id 10\d\d of batch 0 .*{ledgers[0]}", lost.first)
    assert "id 2040 of batch 0" in twice.first
    assert twice.first.count("offset") == 4
    assert ledgers[2] in altered.first


def test_without_a_ledger_there_is_no_result(spark, outbox_table, bootstrap_servers, name):
    with pytest.raises(VerificationImpossible, match="--ledger"):
        run.verify(spark, request_of(outbox_table, bootstrap_servers, f"{name}.ledger"))
    LedgerTopic({"bootstrap.servers": bootstrap_servers}, f"{name}.ledger").prepare(1, 3600)
    with pytest.raises(VerificationImpossible, match=r"topics nowhere.*--topic"):
        run.verify(spark, request_of(outbox_table, bootstrap_servers, f"{name}.ledger", "nowhere"))


class Borrowed:
    """The session of all tests, which the command may not stop."""

    def __init__(self, spark):
        self._spark = spark

    def __getattr__(self, name):
        return getattr(self._spark, name)

    def stop(self):
        pass


@pytest.fixture
def verified(transactional_db, settings, monkeypatch, spark, bootstrap_servers, name):
    """Calls the command on Django's own database. Other tests leave thousands of topics in this Kafka: the command sees
    those that have the test's name in theirs."""
    listed = Offsets.topics
    monkeypatch.setattr(Offsets, "topics", lambda self: [topic for topic in listed(self) if name in topic])
    settings.OUTBOX = {**settings.OUTBOX, "NAME": name, "BOOTSTRAP_SERVERS": bootstrap_servers}
    monkeypatch.setattr("outbox.spark.sessions.session", lambda *given, **options: Borrowed(spark))

    def call(*arguments):
        out, err = StringIO(), StringIO()
        try:
            call_command("outbox_verify", *arguments, stdout=out, stderr=err)
        except SystemExit as ended:
            return ended.code, out.getvalue(), err.getvalue()
        return 0, out.getvalue(), err.getvalue()

    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM outbox_state")
        yield call
        cursor.execute("DELETE FROM outbox_state")


def test_the_command_tells_stores_and_exits(verified, bootstrap_servers, name):
    topic, other = (create_topic(bootstrap_servers, 1, f"{name}-{number}") for number in range(2))
    delivered = Delivered(bootstrap_servers, name, 2)
    delivered.lane(0, topic)
    delivered.lane(1, other, changed=lambda batch, rows: rows[1:])
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO outbox_state (lanes) VALUES (2)")
        code, out, err = verified("--topic", topic, "--topic", other, "--json", "--continuous", "--every", "0")
        told = json.loads(out)
        assert (code, told["clean"], [fault["kind"] for fault in told["faults"]], err) == (3, False, ["lost"], "")
        cursor.execute("SELECT verification FROM outbox_state")
        assert json.loads(cursor.fetchone()[0]) == told


def test_every_sink_of_this_database_is_verified_and_no_other(verified, spark, bootstrap_servers, name):
    """After `--sink`, the remedy for a lost checkpoint, a second ledger lists what the first one does not. A topic is
    left out by its name, not by the end of it."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO outbox_state (lanes) VALUES (1) RETURNING database")
        (database,) = cursor.fetchone()
    accounts = create_topic(bootstrap_servers, 1, f"{name}-accounts.ledger")
    others = create_topic(bootstrap_servers, 1, f"{name}-others.neli")
    for sink_name, origin, topic, first, id_header in (
        (name, database, accounts, 1, "outbox-id"),
        (f"{name}-again", database, accounts, 11, "outbox-id"),
        (f"{name}-foreign", uuid.uuid4(), others, 1, ""),
    ):
        sink = KafkaSink(sink_name, bootstrap_servers, slices=1, id_header=id_header, origin=str(origin))
        sink.write(spark.range(first, first + 10).selectExpr("id", f"'{topic}' AS topic", "'k' AS key", "'v' AS value"))
    code, out, _ = verified("--json")
    told = json.loads(out)
    assert (code, told["faults"], told["batches"], told["records"]) == (0, [], 2, 20)
    assert accounts in told["topics"]
    assert others in told["topics"]
    assert f"outbox-spark-{name}-foreign" not in told["topics"]


def test_an_unavailable_server_is_one_line_and_waited_for(verified, spark, bootstrap_servers, name, monkeypatch):
    topic = create_topic(bootstrap_servers, 1, f"{name}-topic")
    Delivered(bootstrap_servers, name, 1).lane(0, topic)
    real, asked = Offsets.topics, []

    def refused():
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def at_first(self):
        asked.append(1)
        return refused() if len(asked) < 3 else real(self)

    monkeypatch.setattr(Offsets, "topics", at_first)
    with pytest.raises(CommandError, match=r"^Kafka does not answer: .*Start a broker\.$") as error:
        verified("--topic", topic)
    assert error.value.returncode == 1
    stopped = threading.Event()
    monkeypatch.setattr(outbox_verify, "threading", SimpleNamespace(Event=lambda: stopped))
    monkeypatch.setattr(stopped, "wait", lambda seconds: len(asked) > 2)
    code, out, err = verified("--topic", topic, "--continuous", "--every", "7")
    assert (code, out.splitlines()[-1]) == (0, "result: nothing lost, nothing twice, order kept")
    assert err.count("No result: Kafka does not answer") == 1
    assert "follows in 7 s" in err
    assert "not stored, because no harvester" in err


def test_a_verification_that_ends_gives_its_reason_in_a_line(spark, outbox_table, bootstrap_servers, name, monkeypatch):
    def attempt(request):
        with pytest.raises(VerificationImpossible) as error:
            outbox_verify._verify(spark, request, lambda text: None)
        assert "\n" not in str(error.value)
        return error.value

    Delivered(bootstrap_servers, name, 1).lane(0, topic := create_topic(bootstrap_servers, 1))
    request = request_of(outbox_table, bootstrap_servers, f"{name}.ledger", topic)
    away = dataclasses.replace(request, parameters={"conninfo": "host=127.0.0.1 port=1 dbname=x"})
    assert re.search("^Spark failed: .*(refused|failed)", str(attempt(away)))
    monkeypatch.setattr(run, "verify", lambda *given: (_ for _ in ()).throw(Py4JNetworkError("Answer from Java")))
    assert str(attempt(request)).startswith("Spark's JVM has ended")


def test_a_wrong_command_line_is_reported_before_spark_starts(settings, bootstrap_servers):
    with pytest.raises(CommandError, match="NAME=VALUE"):
        call_command("outbox_verify", "--spark-conf", "spark.driver.memory")
    settings.OUTBOX = {**settings.OUTBOX, "ID_HEADER": ""}
    with pytest.raises(CommandError, match="ID_HEADER") as refused:
        call_command("outbox_verify")
    assert refused.value.returncode == 1  # not that of a fault


def test_properties_of_the_client_become_those_of_the_connector():
    given = {
        "bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u", "sasl.password": 'p"w', "ssl.ca.location": "/ca.pem", "linger.ms": 5,
    }  # fmt: skip
    found = java_properties(given)
    assert found["kafka.ssl.truststore.location"] == "/ca.pem"
    assert found["kafka.ssl.truststore.type"] == "PEM"
    assert 'ScramLoginModule required username="u" password="p\\"w";' in found["kafka.sasl.jaas.config"]
    assert "kafka.linger.ms" not in found
