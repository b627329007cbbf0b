"""Two forms of a Spark pipeline from the table to Kafka, as one would write them first; for comparison only.

The source of both: rows as tuples, a mark in `latestOffset`, a DELETE in `commit`, nothing that survives a second
driver.

`exact_sink` is the naive form that ours is compared with, the first prototype: slices by key, order and sentinel by
DataFrame, then Python over Row objects. Each slice of each batch makes a new producer: initialise, read the marker,
produce, commit with the marker. It runs on Spark's stock session, `stock_session`. Two things are better than in a
first attempt: each slice has a task of its own, where Spark would hash both of two into one, and the client waits 5 ms
and not 100 before it asks again.

`bare_sink`: `foreachPartition`, one transactional producer per task and batch, no slices and no ledger. It doubles and
loses records when an epoch is repeated or a task ends early.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import psycopg
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from outbox.spark.sink.sql_expressions import home_of

SCHEMA = "id bigint, topic string, key string, value string, headers array<struct<key: string, value: string>>"


class NaiveSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "naive-outbox"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return NaiveReader(self.options["url"], int(self.options["slices"]), int(self.options["maxRecords"]))


class NaiveReader(DataSourceStreamReader):
    def __init__(self, url: str, slices: int, max_records: int) -> None:
        self.url, self.slices, self.max_records = url, slices, max_records
        self._last: dict[str, Any] = {"leader": "", "lowest": 0, "highest": 0}

    def initialOffset(self) -> dict[str, Any]:
        return {"leader": "", "lowest": 0, "highest": 0}

    def latestOffset(self) -> dict[str, Any]:
        leader = str(uuid.uuid4())
        with psycopg.connect(self.url) as connection:
            rows = connection.execute(
                "UPDATE outbox SET leader_id = %s WHERE id IN "
                "(SELECT id FROM outbox WHERE leader_id IS NULL ORDER BY id LIMIT %s) RETURNING id",
                [leader, self.max_records],
            ).fetchall()
        if rows:
            ids = [row[0] for row in rows]
            self._last = {"leader": leader, "lowest": min(ids), "highest": max(ids)}
        return self._last

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        lowest, highest = end["lowest"], end["highest"]
        width = -(-(highest - lowest + 1) // self.slices)
        return [InputPartition((first, first + width, end["leader"])) for first in range(lowest, highest + 1, width)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        first, beyond, leader = partition.value
        with psycopg.connect(self.url) as connection:
            for id_, topic, key, value, names, texts in connection.execute(
                "SELECT id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values FROM outbox "
                "WHERE id >= %s AND id < %s AND leader_id = %s ORDER BY id",
                [first, beyond, leader],
            ):
                yield id_, topic, key, value, list(zip(names, texts, strict=True))

    def commit(self, end: dict[str, Any]) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute("DELETE FROM outbox WHERE leader_id = %s", [end["leader"]])


def stock_session(config: Mapping[str, str]) -> Any:
    """As in Spark's documents; only Java and the address of the driver are set, which a machine may lack."""
    from pyspark.sql import SparkSession

    from outbox.spark import java_and_jars

    os.environ["JAVA_HOME"] = str(java_and_jars.java().home)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.appName("naive").master("local[2]")
    for name, value in config.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def exact_sink(servers: str, slices: int) -> Callable[[Any, int], None]:
    from confluent_kafka.admin import AdminClient, NewTopic
    from pyspark.sql import functions as F

    name = f"naive-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, slices, 1, config={"cleanup.policy": "compact"})])[name].result(30)

    def deliver(frame: Any, epoch: int) -> None:
        sentinels = frame.sparkSession.range(slices).select(
            F.col("id").cast("int").alias("slice"), F.lit(1).alias("last")
        )
        records = frame.withColumn("slice", F.expr(f"CAST(pmod(xxhash64(topic, key), {slices}) AS INT)"))
        whole = records.withColumn("last", F.lit(0)).unionByName(
            sentinels.withColumn("id", F.lit(None).cast("bigint")), allowMissingColumns=True
        )
        arranged = whole.repartition(slices, home_of("slice", slices)).sortWithinPartitions("slice", "last", "id")
        arranged.rdd.mapPartitions(partial(_write, servers, name, epoch)).collect()

    return deliver


def _write(servers: str, name: str, epoch: int, rows: Iterable[Any]) -> Iterator[int]:
    for slice_, records in groupby(rows, key=lambda row: row["slice"]):
        yield _write_slice(servers, name, epoch, slice_, records)


def _write_slice(servers: str, name: str, epoch: int, slice_: int, rows: Iterable[Any]) -> int:
    from confluent_kafka import Consumer, TopicPartition

    producer = _producer(servers, f"{name}-{slice_}")
    producer.init_transactions(30)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": f"{name}-{slice_}"})
    marker = TopicPartition(name, slice_)
    if consumer.committed([marker], 30)[0].offset >= epoch + 1:
        return 0
    producer.begin_transaction()
    count, is_complete = 0, False
    for row in rows:
        if row["last"]:
            is_complete = True
            break
        _produce(producer, row)
        count += 1
    if not is_complete:
        producer.abort_transaction(30)
        raise RuntimeError(f"slice {slice_} ended without its sentinel")
    marker.offset = epoch + 1
    producer.send_offsets_to_transaction([marker], consumer.consumer_group_metadata(), 30)
    producer.commit_transaction(60)
    consumer.close()
    return count


def bare_sink(servers: str) -> Callable[[Any, int], None]:
    name = f"bare-{uuid.uuid4().hex[:8]}"

    def send(rows: Iterable[Any]) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        producer = _producer(servers, f"{name}-{context.partitionId() if context else 0}")
        producer.init_transactions(30)
        producer.begin_transaction()
        for row in rows:
            _produce(producer, row)
        producer.commit_transaction(60)

    return lambda frame, epoch: frame.foreachPartition(send)


def _producer(servers: str, transactional_id: str) -> Any:
    from confluent_kafka import Producer

    return Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": transactional_id,
            "linger.ms": 5,
            "retry.backoff.ms": 5,
            "compression.type": "lz4",
        }
    )


def _produce(producer: Any, row: Any) -> None:
    headers = [(pair["key"], _bytes(pair["value"])) for pair in row["headers"] or ()]
    headers.append(("outbox-id", str(row["id"]).encode()))
    while True:
        try:
            producer.produce(row["topic"], _bytes(row["value"]), row["key"] or None, headers=headers)
            return
        except BufferError:
            producer.poll(0.1)


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value and bytes(value)
