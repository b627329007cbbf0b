"""Rows about Spark: three forms of a pipeline empty the same table.

- **naive**: one producer per task and batch, like the first prototype. Exact, but slow: rows as Python objects, a new
  producer for each slice of each batch, Spark's stock session.
- **bare**: leaner than the naive form, but not exact: no slices, no order, no ledger. On our session.
- **ours**: source and `KafkaSink`.

Each form has a process and a JVM of its own. All get the same rows, micro-batches of the same size, two tasks on
`local[2]`, and are warmed up; the measured drains are interleaved. The clock runs from the start of the first trigger
that had records to the end of the last: marking, planning, reading, producing, Spark's own log, and the DELETE of every
batch but the last. The start of the query does not count. `spark_naive.py` has the naive and the bare form.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from benchmarks.drains import Drains
from benchmarks.report import ratio, say
from benchmarks.servers import ROOT, Costs, Database, Fill, new_topic, tree_cpu_s

RECORDS, ROUNDS, WARM_UP, WARM_UPS, SLICES = 500_000, 2, 100_000, 2, 2
MAX_RECORDS = 50_000
_GIVE_UP_S = 300.0
_CONFIG = {"spark.ui.enabled": "false", "spark.driver.memory": "1g"}
_PHASES = {
    "latestOffset": "mark",
    "getBatch": "get",
    "queryPlanning": "plan",
    "walCommit": "log",
    "addBatch": "batch",
    "commitOffsets": "commit",
    "triggerExecution": "trigger",
}
Sink = Callable[[Any, int], None]
_session: Any = None


@dataclass(frozen=True)
class Drained:
    rate: float
    """Records per second."""
    cpu_us: float
    """Processor time of Spark with its Python workers, microseconds per record."""
    phases: Mapping[str, float]
    """Medians of the times of a micro-batch as Spark reports them, in ms."""
    batches: int
    renewed: int
    """New producers after the first batch."""
    servers_us: float = 0.0
    """Processor time of PostgreSQL and Kafka, microseconds per record."""

    @property
    def told(self) -> str:
        phases = ", ".join(f"{_PHASES[name]} {ms:.0f}" for name, ms in self.phases.items() if ms)
        cpu = f"CPU per record {self.cpu_us:.1f} us, of the servers {self.servers_us:.1f}"
        return f"ms per batch: {phases}; {self.renewed} producers renewed in {self.batches} batches; {cpu}"


def brief(drains: Drains, records: int) -> None:
    """Our form alone, once, cold."""
    form = Form("ours", drains.database, drains.servers)
    try:
        drained = form.drain(records)
    finally:
        form.close()
    drains.table.row(f"Spark, {FORMS['ours']}", "records/s").add(drained.rate, drained.told)


def rows(drains: Drains) -> None:
    found: dict[str, list[Drained]] = {name: [] for name in FORMS}
    forms = {name: Form(name, drains.database, drains.servers) for name in FORMS}
    try:
        for _ in range(WARM_UPS):
            for form in forms.values():
                form.drain(WARM_UP)
        for _ in range(ROUNDS):
            for name, form in forms.items():
                found[name].append(form.drain(RECORDS))
                say(f"Spark, {name}: {found[name][-1].rate:,.0f}/s; {found[name][-1].told}")
    finally:
        for form in forms.values():
            form.close()
    table = drains.table
    for name, what in FORMS.items():
        for drained in found[name]:
            table.row(f"Spark, {what}", "records/s").add(drained.rate, drained.told)
    for name, goal in {"naive": "2 to 3", "bare": ""}.items():
        row = table.row(f"  ours / the {name} form", "", goal, ratio)
        for ours, other in zip(found["ours"], found[name], strict=True):
            row.add(ours.rate / other.rate)


FORMS = {
    "naive": "the naive form: exact, a producer per task and batch",
    "bare": "the bare form: not exact",
    "ours": "source and KafkaSink",
}


class Form:
    """A process with one form, and with a JVM of its own."""

    def __init__(self, name: str, place: Database, servers: str, max_records: int = MAX_RECORDS) -> None:
        self._place, self._servers, self._max_records = place, servers, max_records
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.spark", name, place.url, servers, str(max_records)],
            cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def drain(self, records: int) -> Drained:
        self._place.connection.execute("TRUNCATE outbox_spark")
        self._place.fill(new_topic(self._servers), Fill(records))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        costs = Costs(self._place, self._place.url, self._servers)
        print(records, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process of this form has ended")
        found = replace(Drained(**json.loads(line)), servers_us=1e6 * sum(costs.taken()[:2]) / records)
        left = self._place.one("SELECT count(*) FROM outbox")
        if left > 2 * self._max_records:
            raise AssertionError(f"{left} records are still in the table")
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()


def main() -> None:
    """In the process of one form: drains the table each time it reads a number of records."""
    name, url, servers, max_records = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Spark prints is no answer
    from benchmarks import spark_naive

    spark = spark_naive.stock_session(_CONFIG) if name == "naive" else session()
    source = "outbox" if name == "ours" else "naive-outbox"
    if name != "ours":
        spark.dataSource.register(spark_naive.NaiveSource)
    options = {"url": url, "slices": SLICES, "maxRecords": max_records}
    for line in sys.stdin:
        if name == "ours":
            sink = _Ours(servers)
        elif name == "naive":
            sink = spark_naive.exact_sink(servers, SLICES)
        else:
            sink = spark_naive.bare_sink(servers)
        frame = spark.readStream.format(source).options(**options).load()
        print(json.dumps(asdict(_drain(frame, sink, int(line)))), file=answers, flush=True)


def session() -> Any:
    global _session
    if _session is None:
        import outbox.spark

        _session = outbox.spark.session("benchmark", "local[2]", _CONFIG, show_ui=False)
        _session.sparkContext.setLogLevel("ERROR")
        outbox.spark.register(_session)
    return _session


class _Ours:
    """`KafkaSink`, with a count of the new producers."""

    def __init__(self, servers: str) -> None:
        from outbox.spark import KafkaSink

        self.sink = KafkaSink(f"bench-{uuid.uuid4().hex[:8]}", servers, slices=SLICES, id_header="outbox-id")
        self.renewed = 0

    def __call__(self, frame: Any, epoch: int) -> None:
        self.sink(frame, epoch)
        if epoch and self.sink.last_written is not None:
            self.renewed += self.sink.last_written.renewed


def _drain(frame: Any, sink: Any, records: int) -> Drained:
    with tempfile.TemporaryDirectory() as checkpoint:
        before_s = tree_cpu_s(os.getpid())
        query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint).start()
        try:
            batches = _batches(query, records)
            spent_s = tree_cpu_s(os.getpid()) - before_s
        finally:
            query.stop()
    begun, (ended, took_ms) = _began(batches[0]), (_began(batches[-1]), batches[-1]["durationMs"]["triggerExecution"])
    seconds: float = (ended - begun).total_seconds() + took_ms / 1000
    phases = {
        name: statistics.median(batch["durationMs"].get(name, 0) for batch in batches[1:-1] or batches)
        for name in _PHASES
    }
    return Drained(records / seconds, 1e6 * spent_s / records, phases, len(batches), getattr(sink, "renewed", 0))


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


if __name__ == "__main__":
    main()
