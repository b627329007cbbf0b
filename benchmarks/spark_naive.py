"""The naive form of a Spark pipeline from the table to Kafka, as one writes it first; for comparison only.

The sink: `foreachPartition`, one transactional producer per task and batch, no slices and no ledger. The source: rows
as tuples, a mark in `latestOffset`, a DELETE in `commit`, nothing that survives a second driver. It doubles and loses
records when an epoch is repeated or a task ends early.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import psycopg
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

SCHEMA = "id bigint, topic string, key string, value string, headers array<struct<key: string, value: string>>"
MAX_RECORDS = 50_000
"""Of a micro-batch, as with the source `outbox`."""


class NaiveSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "naive-outbox"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return NaiveReader(self.options["url"], int(self.options["slices"]))


class NaiveReader(DataSourceStreamReader):
    def __init__(self, url: str, slices: int) -> None:
        self.url, self.slices = url, slices
        self._last: dict[str, Any] = {"leader": "", "lowest": 0, "highest": 0}

    def initialOffset(self) -> dict[str, Any]:
        return {"leader": "", "lowest": 0, "highest": 0}

    def latestOffset(self) -> dict[str, Any]:
        leader = str(uuid.uuid4())
        with psycopg.connect(self.url) as connection:
            rows = connection.execute(
                "UPDATE outbox SET leader_id = %s WHERE id IN "
                "(SELECT id FROM outbox WHERE leader_id IS NULL ORDER BY id LIMIT %s) RETURNING id",
                [leader, MAX_RECORDS],
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


def naive_sink(servers: str) -> Callable[[Any, int], None]:
    name = f"naive-{uuid.uuid4().hex[:8]}"

    def send(rows: Iterable[Any]) -> None:
        from confluent_kafka import Producer
        from pyspark import TaskContext

        context = TaskContext.get()
        producer = Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": f"{name}-{context.partitionId() if context else 0}",
                "linger.ms": 5,
                "compression.type": "lz4",
            }
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for row in rows:
            headers = [(pair["key"], _bytes(pair["value"])) for pair in row["headers"] or ()]
            headers.append(("outbox-id", str(row["id"]).encode()))
            while True:
                try:
                    producer.produce(row["topic"], _bytes(row["value"]), row["key"] or None, headers=headers)  # type: ignore[arg-type]
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.commit_transaction(60)

    return lambda frame, epoch: frame.foreachPartition(send)


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value and bytes(value)
