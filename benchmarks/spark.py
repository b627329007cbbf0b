"""Rows about Spark: one table drained by the naive form of a pipeline and by ours, on one session of `local[2]`.

Both forms get the same rows, slices, micro-batches of at most 50,000 records, and Kafka settings. The clock runs from
the start of the first trigger that had records to the end of the last: marking, planning, reading, producing, Spark's
own log, and the DELETE of every batch but the last. Starting the query is outside, in both, and both are warmed up, for
a JVM starts slowly. The naive form is in `spark_naive.py`; its sink is measured on our source, too.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any

from benchmarks.drains import Drains
from benchmarks.report import ratio, say
from benchmarks.servers import Database, Fill, new_topic

RECORDS, WARM_UP, WARM_UPS, SLICES = 400_000, 100_000, 2, 2
_GIVE_UP_S = 300.0
Sink = Callable[[Any, int], None]
_session: Any = None


def rows(drains: Drains) -> None:
    from benchmarks.spark_naive import naive_sink

    place, servers = drains.database, drains.servers
    forms: dict[str, tuple[str, Callable[[], Sink]]] = {
        "naive": ("naive-outbox", lambda: naive_sink(servers)),
        "naive sink": ("outbox", lambda: naive_sink(servers)),
        "ours": ("outbox", lambda: _ours(servers)),
    }
    for _ in range(WARM_UPS):
        for source, sink in forms.values():
            drain(place, servers, source, sink(), WARM_UP)
    rates = {name: drain(place, servers, source, sink(), RECORDS) for name, (source, sink) in forms.items()}
    say(f"Spark: {rates}")
    table = drains.table
    table.row("Spark, the naive form", "records/s").add(rates["naive"])
    table.row("Spark, the naive sink on our source", "records/s").add(rates["naive sink"])
    table.row("Spark, source and KafkaSink", "records/s").add(rates["ours"])
    table.row("  / the naive form", "", "2 to 3", ratio).add(rates["ours"] / rates["naive"])
    table.row("  / the naive sink on our source", "", "", ratio).add(rates["ours"] / rates["naive sink"])


def session() -> Any:
    global _session
    if _session is None:
        import outbox.spark
        from benchmarks.spark_naive import NaiveSource

        _session = outbox.spark.session(
            "benchmark", "local[2]", {"spark.ui.enabled": "false", "spark.driver.memory": "1g"}
        )
        _session.sparkContext.setLogLevel("ERROR")
        outbox.spark.register(_session)
        _session.dataSource.register(NaiveSource)
    return _session


def _ours(servers: str) -> Sink:
    from outbox.spark import KafkaSink

    return KafkaSink(f"bench-{uuid.uuid4().hex[:8]}", servers, slices=SLICES, id_header="outbox-id")


def drain(place: Database, servers: str, source: str, sink: Sink, records: int) -> float:
    """Records per second."""
    place.connection.execute("TRUNCATE outbox_spark")
    place.fill(new_topic(servers), Fill(records))
    frame = session().readStream.format(source).options(url=place.url, slices=SLICES).load()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint).start()
        try:
            batches = _batches(query, records)
        finally:
            query.stop()
    begun, (ended, took_ms) = _began(batches[0]), (_began(batches[-1]), batches[-1]["durationMs"]["triggerExecution"])
    seconds: float = (ended - begun).total_seconds() + took_ms / 1000
    return records / seconds


def _batches(query: Any, records: int) -> list[Any]:
    """The progress of every batch that had records, once all are done."""
    give_up_at = time.monotonic() + _GIVE_UP_S
    while True:
        found = [batch for batch in query.recentProgress if batch["numInputRows"]]
        if sum(batch["numInputRows"] for batch in found) >= records:
            return found
        if query.exception():
            raise query.exception()
        if time.monotonic() > give_up_at:
            raise TimeoutError("Spark did not drain the table in time")
        time.sleep(0.2)


def _began(batch: Any) -> datetime:
    return datetime.fromisoformat(batch["timestamp"])
