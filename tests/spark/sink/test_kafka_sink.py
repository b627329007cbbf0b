"""Exactly-once delivery of DataFrames to a real Kafka, by Spark."""

import uuid

import pytest
from confluent_kafka import Producer

from outbox.core.exactly_once import ledger
from outbox.exceptions import OutboxError
from outbox.spark import KafkaSink
from outbox.spark.sink import sql_expressions
from outbox.spark.sink.kafka_sink import _homes_after
from tests.spark.killing import Killer
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


def ids_by_key(servers, topic):
    found = {}
    for message in read_topic(servers, topic):
        found.setdefault(message.key, []).append(int(dict(message.headers)["id"]))
    return found


@pytest.mark.part
def test_a_batch_arrives_once_and_every_key_in_order(spark, bootstrap_servers, topic, name):
    def sink():
        return KafkaSink(name, bootstrap_servers, slices=3, id_header="id")

    assert sink().write(records(spark, topic, 1000), 0).count == 1000
    second = sink()
    again = second.write(records(spark, topic, 1000).repartition(5), 0)
    assert (again.count, again.skipped) == (1000, 3)
    second.write(records(spark, topic, 0), 1)
    second.write(records(spark, topic, 500), 2)
    for key, ids in ids_by_key(bootstrap_servers, topic).items():
        number = int(key[1:])
        assert ids == [*range(number, 1000, 7), *range(number, 500, 7)]


def test_an_epoch_delivered_in_part_is_completed(spark, bootstrap_servers, topic, name):
    """One slice fails (its topic does not exist yet), the other is delivered. The next attempt finds it so, with any
    number of shuffle partitions. Another slice count is refused until the epoch is complete."""
    later = f"later-{name}"
    frame = records(spark, topic, 400, keys=2).withColumn(
        "topic", expressions_of(spark, f"CASE WHEN key = 'k0' THEN '{later}' ELSE topic END")
    )

    def sink(slices=4):
        return KafkaSink(name, bootstrap_servers, slices=slices, id_header="id")

    with pytest.raises(Exception, match=f"'{later}'.*Create these topics"):
        sink().write(frame, 0)
    create_topic(bootstrap_servers, 1, name=later)
    delivered = len(read_topic(bootstrap_servers, topic))
    if delivered:
        with pytest.raises(OutboxError, match="Start once with slices=4"):
            sink(3).write(frame, 0)
        with pytest.raises(OutboxError, match="computed again"):
            sink().write(frame.where("id <> 1 AND id <> 0"), 0)
    spark.conf.set("spark.sql.shuffle.partitions", "5")
    try:
        written = sink().write(frame, 0)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    assert written.count == 400
    assert written.skipped >= bool(delivered)
    assert ids_by_key(bootstrap_servers, topic) == {b"k1": list(range(1, 400, 2))}
    assert ids_by_key(bootstrap_servers, later) == {b"k0": list(range(0, 400, 2))}
    assert sink(3).write(records(spark, topic, 3), 1).count == 3


def expressions_of(spark, text):
    from pyspark.sql import functions

    return functions.expr(text)


def test_a_task_that_spark_kills_loses_nothing(spark, bootstrap_servers, topic, name):
    """Its input ends early and without an error, while it reads; or its Python worker continues, while it commits."""
    context = spark.sparkContext
    context.environment["OUTBOX_FAILPOINTS"] = "before-commit=sleep:2"
    try:
        with Killer(spark, after_s=0.3) as killer:
            written = KafkaSink(name, bootstrap_servers, slices=2, id_header="id").write(records(spark, topic, 300), 0)
    finally:
        context.environment.pop("OUTBOX_FAILPOINTS", None)
    assert killer.killed
    assert written.count == 300
    assert ids_by_key(bootstrap_servers, topic) == {b"k%d" % n: list(range(n, 300, 7)) for n in range(7)}


def test_partitions_instead_of_slices_would_lose_and_double(bootstrap_servers, topic):
    """The form without the guard, for comparison: one transaction per partition, an epoch repeated with other
    partitions."""

    def attempt(partitions, committed, upto):
        for number, ids in enumerate(partitions[:upto]):
            if number in committed:
                continue
            producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": f"{topic}-{number}"})
            producer.init_transactions(30)
            producer.begin_transaction()
            for id_ in ids:
                producer.produce(topic, b"", b"k", headers={"id": str(id_)})
            producer.commit_transaction(30)
            committed.add(number)

    ids, committed = list(range(100)), set()
    attempt([ids[::2], ids[1::2]], committed, upto=1)
    attempt([ids[:50], ids[50:]], committed, upto=2)
    arrived = ids_by_key(bootstrap_servers, topic)[b"k"]
    assert len(arrived) > len(set(arrived))
    assert set(arrived) < set(ids)


def test_checksums_are_those_of_the_ledger(spark):
    rows = [
        (1, "t", "", None, None),
        (-5, "töpic", "schlüssel 🗝", "wert 🎁", [("ä", b"1"), ("b", "ß🎈".encode())]),
        (9_000_000_000, "t", "k", "", []),
        (3, "t", None, "x", None),
    ]
    schema = "id bigint, topic string, key string, value string, headers array<struct<key: string, value: binary>>"
    frame = spark.createDataFrame(rows, schema)
    found = {
        row["id"]: row["sum"]
        for row in frame.select("id", sql_expressions.checksum(frame.columns).alias("sum")).collect()
    }
    binary = frame.withColumn("value", frame["value"].cast("binary")).withColumn("key", frame["key"].cast("binary"))
    again = {
        row["id"]: row["sum"]
        for row in binary.select("id", sql_expressions.checksum(frame.columns).alias("sum")).collect()
    }
    expected = {
        id_: ledger.digest([
            (id_, topic, key or "", value, [h[0] for h in headers or ()], [h[1].decode() for h in headers or ()], None)
        ])
        for id_, topic, key, value, headers in rows
    }  # fmt: skip
    assert found == again == expected


@pytest.mark.parametrize("homes", [(), (0,), (1, 0), (3, 1, 4, 0, 2)])
def test_every_slice_has_a_task_of_its_own(spark, homes):
    slices = len(homes) or 5
    frame = spark.range(slices).repartition(slices, sql_expressions.home_of("id", slices, homes))
    found = frame.selectExpr("id", "spark_partition_id() AS place").collect()
    assert [row["place"] for row in sorted(found, key=lambda row: row["id"])] == list(homes or range(slices))


def test_a_slice_goes_where_the_worker_that_was_free_first_is_lent_first():
    ended = {0: 3.5, 1: 1.5, 2: 2.5}
    assert _homes_after([{"slice": slice_, "ended": at} for slice_, at in ended.items()]) == (2, 0, 1)


def test_workers_with_producers_are_not_lent_to_other_tasks(spark, bootstrap_servers, topic, name):
    """Tasks in Python before the slices, like those of the source, used to take the workers in any order."""
    sink = KafkaSink(name, bootstrap_servers, slices=1)
    renewed = []
    for epoch in range(4):
        frame = records(spark, topic, 100).repartition(2)
        renewed.append(sink.write(frame.mapInArrow(lambda batches: batches, frame.schema), epoch).renewed)
    assert renewed == [1, 0, 0, 0]
    assert "OUTBOX_SPARK_WORKERS" not in spark.sparkContext.environment


def test_headers_arrive_as_they_are(spark, bootstrap_servers, topic, name):
    headers = [[("ä", b"\xff\x00"), ("ä", b""), ("", b"x = - y"), ("none", None)], [("one", b"1")], [], None]
    schema = "id bigint, topic string, key string, value string, headers array<struct<key: string, value: binary>>"
    rows = [(id_, topic, "k", "v", given) for id_, given in enumerate(headers)]
    KafkaSink(name, bootstrap_servers, slices=1).write(spark.createDataFrame(rows, schema))
    assert [list(message.headers or ()) for message in read_topic(bootstrap_servers, topic)] == [
        list(given or ()) for given in headers
    ]


def test_a_header_without_a_name_is_refused(spark, bootstrap_servers, topic, name):
    frame = records(spark, topic, 1).selectExpr(
        "*", "array(named_struct('key', CAST(NULL AS STRING), 'value', X'01')) AS headers"
    )
    with pytest.raises(Exception, match="a header without a name"):
        KafkaSink(name, bootstrap_servers, slices=1).write(frame)
    assert read_topic(bootstrap_servers, topic) == []


def test_wrong_arguments_and_columns_are_reported_at_once(spark, bootstrap_servers):
    with pytest.raises(OutboxError, match=r"name='a b'.*slices=0.*servers=\"\""):
        KafkaSink("a b", slices=0)
    with pytest.raises(OutboxError, match=r"needs the columns key, id.*order="):
        KafkaSink("a", bootstrap_servers).write(spark.sql("SELECT 't' AS topic, 'v' AS value"))
    with pytest.raises(
        OutboxError, match=r"topic is int.*key is int and must be string or binary.*id is string.*has topic int, .*Cast"
    ):
        KafkaSink("a", bootstrap_servers).write(spark.sql("SELECT 1 AS topic, 2 AS key, 'v' AS value, 'x' AS id"))
    with pytest.raises(OutboxError, match=r"headers is map<string,string> and must be array<struct<key:string"):
        KafkaSink("a", bootstrap_servers).write(
            spark.sql("SELECT 't' AS topic, NULL AS key, 'v' AS value, 1 AS id, map('a', 'b') AS headers")
        )
    with pytest.raises(OutboxError, match=r"sink\.write"):
        KafkaSink("a", bootstrap_servers)(spark.range(1), 0)
