"""`KafkaSink`: exactly-once delivery of any DataFrame to Kafka. This is the driver's side; records stay in executors.

A DataFrame has the columns topic (string), key and value (string or binary), optionally headers
(array<struct<key: string, value: binary>>) and id (bigint). Records of one (topic, key) keep the order of `order`,
by default that of the column id.

    sink = KafkaSink(name="orders", servers="localhost:9092", slices=4)
    frame.writeStream.foreachBatch(sink).option("checkpointLocation", ...).start()
    sink.write(frame, epoch=7)                       # batch: the same epoch again changes nothing

The sink cuts each epoch into slices by key. Each slice is one Kafka transaction, and its last record is an entry in the
ledger topic (by default `outbox-spark-<name>`). When a driver starts, it fences all slices, reads their entries and
decides how to begin (`slice_ledger.judge`). If an epoch was delivered in part, the driver first compares the records
with those that were delivered.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from outbox.edges.kafka.exactly_once.ledger_topic import LedgerMissing
from outbox.exceptions import OutboxError
from outbox.spark.sink import producers, slice_ledger, slice_writer, sql_expressions
from outbox.spark.sink.columns import check as check_columns
from outbox.spark.sink.plan import CHECKSUM, PART, RESULT, SliceFailed, SlicePlan, compare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("outbox.spark")

_POOL = "OUTBOX_SPARK_WORKERS"
_environment_mutex = threading.Lock()
_QUERY_PROPERTY = "sql.streaming.queryId"
_TAKEOVER_S = 60.0
_BATCH_QUERY = "batch"
_NEW_QUERY = "of a new checkpoint"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,180}")
SLICES_MAX = 1000


@dataclass(frozen=True)
class Written:
    """The result of one epoch."""

    epoch: int
    count: int
    skipped: int
    """Slices that had been delivered before."""
    renewed: int
    """Slices that needed a new producer."""
    seconds: float


class KafkaSink:
    """For `foreachBatch`, or `write()` for a batch. One object serves one query."""

    def __init__(
        self,
        name: str,
        servers: str = "",
        *,
        slices: int = 4,
        order: Sequence[str] = ("id",),
        ledger: str = "",
        properties: Mapping[str, Any] | None = None,
        transaction_timeout_s: float = 60.0,
        ledger_retention_s: float = 7 * 86400.0,
        id_header: str = "",
        keep_empty_key: bool = False,
        begin_at: int = 0,
        origin: str = "",
    ) -> None:
        """`name`: stable and unique, it names the transactional ids and the ledger. `properties`: of the Kafka
        clients. `id_header`: the header that carries the column id. `begin_at`: the first epoch for which this sink
        accepts an empty ledger. `origin`: a text that every entry keeps."""
        self.name, self.slices, self.order = name, slices, tuple([order] if isinstance(order, str) else order)
        self.ledger = ledger or f"outbox-spark-{name}"
        self.properties = {**({"bootstrap.servers": servers} if servers else {}), **(properties or {})}
        self.transaction_timeout_s, self.ledger_retention_s = float(transaction_timeout_s), float(ledger_retention_s)
        self.id_header, self.keep_empty_key = id_header, keep_empty_key
        self.begin_at, self.origin = begin_at, origin
        self._check()
        self._at: tuple[str, int] | None = None
        """The last query and epoch that this object delivered."""
        self._homes: tuple[int, ...] = ()
        """The partition of each slice; empty: the partition with the slice's number."""
        self.last_written: Written | None = None

    def _check(self) -> None:
        wrong = []
        if not _NAME.fullmatch(self.name):
            wrong.append(f"name={self.name!r}: use 1 to 180 letters, digits, dots, dashes or underscores")
        if not isinstance(self.slices, int) or not 1 <= self.slices <= SLICES_MAX:
            wrong.append(f"slices={self.slices!r}: set a number from 1 to {SLICES_MAX}")
        if not self.properties.get("bootstrap.servers"):
            wrong.append('servers="": name the brokers, for instance "localhost:9092"')
        if not self.order:
            wrong.append('order=(): name the columns that order the records of a key, for instance ("id",)')
        if not 1 <= self.transaction_timeout_s <= 900:
            wrong.append(f"transaction_timeout_s={self.transaction_timeout_s:g}: set 1 to 900 seconds")
        if wrong:
            raise OutboxError("The Spark sink refuses these arguments: " + "; ".join(wrong) + ".")

    def __getstate__(self) -> None:
        raise TypeError("You cannot send a KafkaSink to executors. Use it on the driver only.")

    # ---- epochs

    def __call__(self, frame: DataFrame, epoch: int) -> None:
        """One micro-batch, for `foreachBatch`."""
        query = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_PROPERTY)
        if not query:
            raise OutboxError(
                "KafkaSink works with foreachBatch() of a streaming query. Call sink.write() for a batch."
            )
        self._deliver(frame, query, epoch)

    def write(self, frame: DataFrame, epoch: int = 0) -> Written:
        """One batch. The sink recognises and skips the same epoch with the same records. The next batch under this name
        has the next number."""
        return self._deliver(frame, _BATCH_QUERY, epoch)

    def _deliver(self, frame: DataFrame, query: str, epoch: int) -> Written:
        begun = time.monotonic()
        check_columns(frame, self.name, self.order)
        plan = self._plan(frame, query, epoch)
        sliced = self._sliced(frame)
        if plan.done:
            self._compare(sliced, plan)
        self._at = None  # after a failure some slices may have committed: the next attempt reads the ledger first
        results = self._run(sliced, plan)
        self._at = (query, epoch)
        self._homes = _homes_after(results)
        skipped, renewed = (sum(row[name] for row in results) for name in ("skipped", "renewed"))
        count = sum(row["count"] for row in results)
        written = Written(epoch, count, skipped, renewed, time.monotonic() - begun)
        self.last_written = written
        logger.info(
            "epoch_delivered sink=%s epoch=%d count=%d skipped=%d renewed=%d seconds=%.3f",
            self.name, epoch, count, skipped, renewed, written.seconds,
        )  # fmt: skip
        return written

    def _plan(self, frame: DataFrame, query: str, epoch: int) -> SlicePlan:
        if self._at is not None and self._at == (query, epoch - 1):
            start = slice_ledger.Start(self.slices, dict.fromkeys(range(self.slices), epoch - 1), {})
        else:
            start = self._take_over(query, epoch)
        return self._new_plan(query, epoch, start, has_ids="id" in frame.columns)

    def _new_plan(self, query: str, epoch: int, start: slice_ledger.Start, *, has_ids: bool) -> SlicePlan:
        return SlicePlan(
            name=self.name,
            query=query,
            epoch=epoch,
            slices=self.slices,
            slices_before=start.slices_before,
            ledger=self.ledger,
            properties=self.properties,
            last=start.last,
            done=start.done,
            transaction_timeout_s=self.transaction_timeout_s,
            id_header=self.id_header,
            keep_empty_key=self.keep_empty_key,
            has_ids=has_ids,
            origin=self.origin,
            order="" if self.order == ("id",) else ",".join(self.order),
        )

    def _take_over(self, query: str, epoch: int) -> slice_ledger.Start:
        """Fence every slice that an older driver may still write, then read which slices are delivered."""
        ledger = producers.ledger_of(self.properties, self.ledger)
        partitions = ledger.prepare_slices(self.slices, self.ledger_retention_s)
        give_up_at = time.monotonic() + _TAKEOVER_S
        plan = self._new_plan(query, epoch, slice_ledger.Start(0, {}, {}), has_ids=False)
        found = []
        for slice_ in range(partitions):
            producer = producers.initialise(plan, slice_, give_up_at)
            try:
                found.append(ledger.last_entry(slice_, give_up_at))
            finally:
                producer.drop_and_wait()
        return slice_ledger.judge(
            found, self.name, query, epoch, self.slices, begin_at=self.begin_at, origin=self.origin
        )

    def refuse_new_query(self) -> None:
        """For a checkpoint that knows no query yet: raises if the ledger knows one. At its first epoch it would be too
        late: the source would have planned a batch that the right checkpoint does not know, and would refuse that
        checkpoint too."""
        ledger = producers.ledger_of(self.properties, self.ledger)
        give_up_at = time.monotonic() + _TAKEOVER_S
        found = [ledger.last_entry(slice_, give_up_at) for slice_ in range(ledger.partitions())]
        slice_ledger.judge(found, self.name, _NEW_QUERY, 0, self.slices, origin=self.origin)

    # ---- the job

    def _sliced(self, frame: DataFrame) -> DataFrame:
        """The columns that executors need, and those that sort."""
        there = frame.columns
        columns = [name for name in ("id", "topic", "key", "value", "headers") if name in there]
        slice_ = sql_expressions.slice_sql(columns, self.order, self.slices, keep_empty_key=self.keep_empty_key)
        return frame.selectExpr(
            f"{slice_} * 2 AS {PART}",
            f"{sql_expressions.checksum_sql(columns)} AS {CHECKSUM}",
            *(f"{sql_expressions.HEADERS} AS headers" if name == "headers" else name for name in columns),
            *(sql_expressions.quoted(name) for name in self.order if name not in columns),
        )

    def _run(self, sliced: DataFrame, plan: SlicePlan) -> list[Any]:
        spark = sliced.sparkSession
        sentinels = spark.range(0, self.slices, 1, 1).selectExpr(f"CAST(id * 2 + 1 AS INT) AS {PART}")
        whole = sliced.unionByName(sentinels, allowMissingColumns=True)
        # One slice per task. A task with several slices, or none, costs only time.
        home = sql_expressions.home_of(f"{PART} div 2", self.slices, self._homes)
        arranged = whole.repartition(self.slices, home).sortWithinPartitions(PART, *self.order)
        with _workers_of_their_own(spark.sparkContext.environment, self.slices):
            written = arranged.mapInArrow(partial(slice_writer.write, plan), RESULT)
        results = written.collect()
        if sorted(row["slice"] for row in results) != list(range(self.slices)):
            raise SliceFailed(
                f"Spark returned {len(results)} of {self.slices} slices for epoch {plan.epoch} of the sink "
                f"{self.name!r}."
            )
        return results

    def _compare(self, sliced: DataFrame, plan: SlicePlan) -> None:
        """Before the driver writes more of the epoch: are these the records that were delivered in part?"""
        from pyspark.sql import functions as F

        counters = sliced.groupBy(PART).agg(F.count("*").alias("count"), F.sum(CHECKSUM).alias("digest"))
        now = {row[PART] // 2: (row["count"], row["digest"]) for row in counters.collect()}
        for slice_, delivered in plan.done.items():
            compare(plan, slice_, delivered, now.get(slice_, (0, 0)))


def _homes_after(results: Sequence[Any]) -> tuple[int, ...]:
    """Spark lends out Python workers in the order in which they came back. The first one goes to the task of the next
    epoch's partition 0, and it keeps the producer of the slice that ended first. A wrong guess costs a new producer."""
    places = {row["slice"]: place for place, row in enumerate(sorted(results, key=lambda row: row["ended"]))}
    return tuple(places[slice_] for slice_ in range(len(results)))


@contextmanager
def _workers_of_their_own(environment: dict[str, Any], slices: int) -> Iterator[None]:
    """Spark keeps the Python workers of each environment apart. So it does not lend a worker with producers to a task
    that reads or transforms, which would change their order. Nor does it lend one to a sink with fewer slices: Spark
    takes the worker that has rested longest, so a surplus worker would change the order too."""
    with _environment_mutex:  # several queries have one environment
        environment[_POOL] = str(slices)
        try:
            yield
        finally:
            del environment[_POOL]


__all__ = ["KafkaSink", "LedgerMissing", "Written"]
