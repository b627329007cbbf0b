"""Reads topics and ledgers through Spark's Kafka connector, and the ids of the table. It checks nothing.

Records stay in the JVMs of the executors. Python workers decode the ledger entries; one of them reads the ids.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from outbox.core.exactly_once import ledger
from outbox.edges.postgres.spark import verify
from outbox.exceptions import OutboxError
from outbox.spark.sink import slice_ledger, sql_expressions
from outbox.spark.verify.findings import NotNow, VerificationImpossible, VerificationRequest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Span = dict[str, dict[int, tuple[int, int]]]
"""Topic → partition → its first offset, and the one after its last."""

_REQUEST_S = 10.0
_POLL_S = 0.05
_ENTRIES_AT_ONCE, _IDS_AT_ONCE = 100, 100_000
_JAVA = {
    "security.protocol": "security.protocol",
    "sasl.mechanism": "sasl.mechanism",
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
    "ssl.endpoint.identification.algorithm": "ssl.endpoint.identification.algorithm",
    "client.rack": "client.rack",
}
"""librdkafka's names → those of the Java client, for what means the same there."""
_JAAS = {"PLAIN": "plain.PlainLoginModule"}
_SCRAM = "scram.ScramLoginModule"
ENTRY = (
    "ledger string, lane int, batch bigint, change bigint, is_sink boolean, by_id boolean, place bigint, at bigint, "
    "count bigint, digest bigint, ids array<bigint>, error string"
)


# ---- offsets


class Offsets:
    """Where partitions begin and end."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        from confluent_kafka.admin import AdminClient

        self._admin = AdminClient({**properties})

    def topics(self) -> list[str]:
        """All but Kafka's own."""
        found = self._admin.list_topics(timeout=_REQUEST_S).topics
        return sorted(name for name in found if not name.startswith("__"))

    def now(self, topics: Iterable[str]) -> Span:
        """Up to the last offset that is settled and visible to a read_committed consumer."""
        partitions = self._partitions(topics)
        return _spans(self._ask(partitions, "earliest"), self._ask(partitions, "stable"))

    def settled(self, topics: Iterable[str], give_up_at: float) -> Span:
        """Up to the present ends, once no transaction is open below them."""
        partitions = self._partitions(topics)
        ends = self._ask(partitions, "latest")
        while behind := self._behind(ends):
            if time.monotonic() > give_up_at:
                topic, number = behind[0]
                raise NotNow(
                    f"A transaction stays open in partition {number} of the topic {topic!r} and hides records, which "
                    "cannot be verified. Wait until it has ended (transaction.timeout.ms of its producer), or leave "
                    "the topic out."
                )
            time.sleep(_POLL_S)
        return _spans(self._ask(partitions, "earliest"), ends)

    def _behind(self, ends: Mapping[tuple[str, int], int]) -> list[tuple[str, int]]:
        stable = self._ask(list(ends), "stable")
        return [at for at, end in ends.items() if stable[at] < end]

    def _partitions(self, topics: Iterable[str]) -> list[tuple[str, int]]:
        found = self._admin.list_topics(timeout=_REQUEST_S).topics
        return [(name, number) for name in topics if name in found for number in found[name].partitions]

    def _ask(self, partitions: list[tuple[str, int]], what: str) -> dict[tuple[str, int], int]:
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        if not partitions:
            return {}
        spec = OffsetSpec.earliest() if what == "earliest" else OffsetSpec.latest()  # type: ignore[no-untyped-call]
        level = IsolationLevel.READ_COMMITTED if what == "stable" else IsolationLevel.READ_UNCOMMITTED
        futures = self._admin.list_offsets(
            {TopicPartition(*at): spec for at in partitions}, isolation_level=level, request_timeout=_REQUEST_S
        )
        try:
            return {
                (at.topic, at.partition): int(future.result(2 * _REQUEST_S).offset) for at, future in futures.items()
            }
        except (KafkaException, TimeoutError) as error:
            raise NotNow(f"Kafka did not return offsets: {error}. Check that all brokers are up.") from error


def _spans(starts: Mapping[tuple[str, int], int], ends: Mapping[tuple[str, int], int]) -> Span:
    found: Span = {}
    for (topic, number), end in ends.items():
        found.setdefault(topic, {})[number] = (starts[topic, number], end)
    return found


# ---- frames


def java_properties(properties: Mapping[str, Any]) -> dict[str, str]:
    """For the connector's clients."""
    found = {"bootstrap.servers": str(properties["bootstrap.servers"]), "isolation.level": "read_committed"}
    found |= {_JAVA[name]: str(value) for name, value in properties.items() if name in _JAVA}
    if "ssl.ca.location" in properties:
        found["ssl.truststore.type"] = "PEM"
    if "sasl.username" in properties:
        module = _JAAS.get(found.get("sasl.mechanism", "PLAIN"), _SCRAM)
        user, secret = (
            str(properties.get(f"sasl.{name}", "")).replace('"', '\\"') for name in ("username", "password")
        )
        found["sasl.jaas.config"] = (
            f'org.apache.kafka.common.security.{module} required username="{user}" password="{secret}";'
        )
    return {f"kafka.{name}": value for name, value in found.items()}


def kafka_frame(spark: SparkSession, request: VerificationRequest, span: Span) -> DataFrame:
    """The committed records between those offsets, with headers."""

    def offsets(index: int) -> str:
        return json.dumps({topic: {str(n): ends[index] for n, ends in parts.items()} for topic, parts in span.items()})

    return (
        spark.read.format("kafka")
        .options(**java_properties(request.properties))
        .option("assign", json.dumps({topic: sorted(parts) for topic, parts in span.items()}))
        .options(startingOffsets=offsets(0), endingOffsets=offsets(1))
        .options(includeHeaders="true", failOnDataLoss="false")
        .load()
    )


def lookup(found: Mapping[str, int]) -> Column:
    """A number for each text."""
    from pyspark.sql import functions as F

    return F.create_map(*[F.lit(item) for pair in found.items() for item in pair])


def records(spark: SparkSession, request: VerificationRequest, span: Span) -> DataFrame:
    """Numbers of each record: topic's index, partition, place, at, id (null: of another program), sum, key (a hash;
    null: no order was promised)."""
    from pyspark.sql import functions as F

    numbers = lookup({topic: number for number, topic in enumerate(sorted(span))})
    last = F.expr("try_element_at(headers, -1)")
    text = F.when(last["key"] == request.id_header, last["value"].cast("string"))
    stored = F.when(F.size("headers") > 1, F.slice("headers", F.lit(1), F.size("headers") - 1))
    frame = kafka_frame(spark, request, span).withColumn("_id", text.try_cast("bigint"))
    known = frame.select(
        numbers[F.col("topic")].cast("int").alias("topic_no"), "partition", "offset", "timestamp",
        F.col("_id").alias("id"), "topic", "key", "value", stored.alias("headers"),
    )  # fmt: skip
    checksum = sql_expressions.checksum(["id", "topic", "key", "value", "headers"])
    return known.select(
        "topic_no", "partition", F.col("offset").alias("place"), F.unix_millis("timestamp").alias("at"), "id",
        F.when(F.col("id").isNotNull(), checksum).alias("sum"),
        F.when(F.octet_length("key") > 0, F.xxhash64("key")).alias("key"),
    )  # fmt: skip


def ledger_entries(spark: SparkSession, request: VerificationRequest, span: Span) -> DataFrame:
    """`ENTRY` of every entry, without those that repeat the one before (the mark of a change of lanes)."""
    raw = kafka_frame(spark, request, span).selectExpr(
        "topic", "partition", "offset", "unix_millis(timestamp) AS at", "value"
    )
    raw = raw.where(f"value IS NULL OR value <> X'{ledger.BEGINNING.hex()}'")
    return raw.mapInArrow(decoded, ENTRY)


def decoded(batches: Iterable[Any]) -> Iterator[Any]:
    """For `mapInArrow`. One task has a partition from its start to its end. It passes on the ids of a few entries at a
    time, because one batch of Spark may hold the entries of all records."""
    import pyarrow as pa

    before: dict[tuple[str, int], tuple[Any, ...]] = {}
    found: list[dict[str, Any]] = []
    for row in (row for batch in batches for few in _cut(batch) for row in few.to_pylist()):
        at = (row["topic"], row["partition"])
        entry = _entry(row)
        told = (entry["batch"], entry["digest"], entry["ids"])
        if before.get(at) != told or entry["error"]:
            found.append(entry)
        before[at] = told
        if sum(len(one["ids"]) for one in found) >= _IDS_AT_ONCE or len(found) >= _ENTRIES_AT_ONCE:
            yield pa.RecordBatch.from_pylist(found, _entry_schema())
            found = []
    yield pa.RecordBatch.from_pylist(found, _entry_schema())


def _cut(batch: Any) -> Iterator[Any]:
    return (batch.slice(start, _ENTRIES_AT_ONCE) for start in range(0, batch.num_rows, _ENTRIES_AT_ONCE))


def _entry(row: Mapping[str, Any]) -> dict[str, Any]:
    found = {"ledger": row["topic"], "lane": row["partition"], "place": row["offset"], "at": row["at"], "ids": []}
    is_sink = (row["value"] or b"")[:3] == b"OBS"
    found |= {"is_sink": is_sink, "by_id": True, "batch": -1, "change": 0, "count": 0, "digest": 0, "error": None}
    try:
        if is_sink:
            slice_ = slice_ledger.decode(row["value"])
            return {**found, **_fields(slice_), "batch": slice_.epoch, "lane": slice_.slice, "by_id": slice_.is_by_id}
        batch = ledger.decode(row["value"])
        return {**found, **_fields(batch), "batch": batch.batch, "lane": batch.lane, "change": batch.change}
    except (OutboxError, ValueError) as error:
        return {**found, "error": f"partition {row['partition']}, offset {row['offset']}: {error}"}


def _fields(entry: ledger.Entry | slice_ledger.SliceEntry) -> dict[str, Any]:
    if len(entry.ids) != entry.count:
        raise VerificationImpossible(
            f"an entry of {entry.count} records lists {len(entry.ids)} ids: its DataFrame had no id"
        )
    return {"count": entry.count, "digest": entry.digest, "ids": entry.ids}


def _entry_schema() -> Any:
    import pyarrow as pa

    fields = [("ledger", pa.string()), ("lane", pa.int32()), ("batch", pa.int64()), ("change", pa.int64())]
    fields += [
        ("is_sink", pa.bool_()),
        ("by_id", pa.bool_()),
        ("place", pa.int64()),
        ("at", pa.int64()),
        ("count", pa.int64()),
    ]
    return pa.schema([*fields, ("digest", pa.int64()), ("ids", pa.list_(pa.int64())), ("error", pa.string())])


def rows_of_table(spark: SparkSession, request: VerificationRequest) -> DataFrame:
    """id and is_dead: of the records in the table, and of the dead letters."""
    return spark.range(0, 1, 1, 1).mapInArrow(partial(_ids, request), "id bigint, is_dead boolean")


def _ids(request: VerificationRequest, batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        if batch.num_rows:
            for read, is_dead in ((verify.ids, False), (verify.dead_ids, True)):
                yield from (_as_arrow(ids, is_dead) for ids in read(request.parameters, request.table))


def _as_arrow(ids: list[int], is_dead: bool) -> Any:
    import pyarrow as pa

    columns = [pa.array(ids, pa.int64()), pa.array([is_dead] * len(ids))]
    return pa.RecordBatch.from_arrays(columns, ["id", "is_dead"])
