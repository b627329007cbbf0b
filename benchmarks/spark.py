"""Rows about Spark: a table drained by the naive form of a sink and by `KafkaSink`, on one session of `local[2]`.

The naive form is what one writes first: `foreachPartition`, one transactional producer per task and batch, no slices
and no ledger; it doubles and loses records when an epoch is repeated. Source, micro-batches and session are the same
for both. The clock is Spark's: the time of the triggers that had records, planning, log and commit included. Both
forms are warmed up, for a JVM starts slowly.
"""

from __future__ import annotations

import re
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.drains import Drains
from benchmarks.report import ratio
from benchmarks.servers import Database, Fill, new_topic
from outbox.spark.verdict import Request

RECORDS, WARM_UP, SLICES = 200_000, 20_000, 2
AUDITED = 1_000_000
_GIVE_UP_S = 300.0
_session: Any = None


def rows(drains: Drains) -> None:
    place, servers = drains.database, drains.servers
    for sink in (_naive(servers), _ours(servers)):
        _drain(place, servers, sink, WARM_UP)
    naive = _drain(place, servers, _naive(servers), RECORDS)
    ours = _drain(place, servers, _ours(servers), RECORDS)
    drains.table.row("Spark, naive sink", "records/s").add(naive)
    drains.table.row("Spark, KafkaSink", "records/s").add(ours)
    drains.table.row("KafkaSink / naive", "", "2 to 3", ratio).add(ours / naive)


def audited(drains: Drains, records: int = AUDITED) -> None:
    """The audit of a drained table, beside a plain count of the topic; each the median of three, once warm."""
    from outbox.spark.audit import audit
    from outbox.spark.audit_reading import Offsets, kafka_frame

    place, topic, spark = drains.database, new_topic(drains.servers), _spark()
    fill = Fill(records)
    place.fill(topic, fill)
    drains.empty(topic, fill)
    request = Request(
        parameters={"conninfo": place.url},
        table="outbox",
        properties={"bootstrap.servers": drains.servers},
        ledgers=(f"{topic}.ledger",),
        topics=(topic,),
    )
    span = Offsets(request.properties).settled([topic], time.monotonic() + _GIVE_UP_S)
    counts, audits = [], []
    for _ in range(4):
        begun = time.monotonic()
        counted = kafka_frame(spark, request, span).count()
        counts.append(counted / (time.monotonic() - begun))
        verdict = audit(spark, request)
        if not verdict.is_clean or not verdict.records == counted == records:
            raise AssertionError("\n".join(verdict.lines()))
        audits.append(records / verdict.seconds)
    count, rate = statistics.median(counts[1:]), statistics.median(audits[1:])
    note = f"{records:,} records, of the driver {_peak_mb(spark):,.0f} MB"
    drains.table.row("Spark, count() of the topic", "records/s").add(count)
    drains.table.row("Spark, audit", "records/s").add(rate, note)
    drains.table.row("  audit / count()", "", "", ratio).add(rate / count)


def _peak_mb(spark: Any) -> float:
    """The most memory that the JVM has ever had: executors of a local master are in it."""
    pid = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


def _spark() -> Any:
    global _session
    if _session is None:
        import outbox.spark

        _session = outbox.spark.session(
            "benchmark", "local[2]", {"spark.ui.enabled": "false", "spark.driver.memory": "1g"}
        )
        _session.sparkContext.setLogLevel("ERROR")
        outbox.spark.register(_session)
    return _session


def _ours(servers: str) -> Callable[[Any, int], None]:
    from outbox.spark import KafkaSink

    return KafkaSink(f"bench-{uuid.uuid4().hex[:8]}", servers, slices=SLICES, id_header="outbox-id")


def _naive(servers: str) -> Callable[[Any, int], None]:
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
            headers = [(pair["key"], bytes(pair["value"])) for pair in row["headers"] or ()]
            headers.append(("outbox-id", str(row["id"]).encode()))
            value = row["value"]
            while True:
                try:
                    producer.produce(row["topic"], value and bytes(value), row["key"] or None, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.commit_transaction(60)

    return lambda frame, epoch: frame.foreachPartition(send)


def _drain(place: Database, servers: str, sink: Callable[[Any, int], None], records: int) -> float:
    """Records per second."""
    place.connection.execute("TRUNCATE outbox_spark")
    place.fill(new_topic(servers), Fill(records))
    source = _spark().readStream.format("outbox").options(url=place.url, slices=SLICES)
    with tempfile.TemporaryDirectory() as checkpoint:
        query = source.load().writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint).start()
        try:
            give_up_at = time.monotonic() + _GIVE_UP_S
            while place.one("SELECT count(*) FROM outbox") and not query.exception():
                if time.monotonic() > give_up_at:
                    raise TimeoutError("Spark did not drain the table in time")
                time.sleep(0.2)
            if query.exception():
                raise query.exception()
            found = [batch for batch in query.recentProgress if batch["numInputRows"]]
        finally:
            query.stop()
    spent_s = sum(batch["durationMs"]["triggerExecution"] for batch in found) / 1000
    return float(sum(batch["numInputRows"] for batch in found)) / spent_s
