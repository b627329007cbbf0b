"""The verification: one Spark job that proves from topics, ledger and table which records were delivered.

It checks every batch of the ledger's window. Kafka must have as many records as the entry lists, each as often as it is
listed; the sum of their checksums must be the entry's digest. In each key the batches must be in order, and the ids in
each batch. The result also names records that only Kafka has, and ids that are missing.

**When it reads.** Harvesters may continue meanwhile. First it reads the ledger's stable ends: it checks only entries
below them. Then it reads the topics' ends, and waits until no transaction is open below those: by then the records of
these entries are there if they ever were. Then it reads the ledger's ends again: newer entries are not checked, but
name the owners of newer records. It reads the table last: by then the records of every entry but the last of its lane
must be deleted.

**How.** It joins topics (numbers only: id, place, checksum, hash of the key) and ledger (its ids, exploded) by id,
once, and keeps the join on disks of the executors; every question is an aggregate of it. The driver sees counters, a
row per lane, and the first counterexamples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from outbox.edges.postgres.spark.verify import database
from outbox.spark.verify import pairing as pairing
from outbox.spark.verify import reading as reading
from outbox.spark.verify import sink_ledgers as sinks
from outbox.spark.verify.absent import absent
from outbox.spark.verify.findings import KINDS, Fault, Result, VerificationImpossible, VerificationRequest
from outbox.spark.verify.reading import Offsets, Span, lookup

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BATCH = ["ledger_no", "lane", "batch"]
_TRANSACTION_MS = 60_000
"""A record may be older than its entry by this much."""


def verify(spark: SparkSession, request: VerificationRequest, say: Callable[[str], None] = lambda text: None) -> Result:
    """Everything, once."""
    return _Verification(spark, request, say).run()


class _Verification:
    def __init__(self, spark: SparkSession, request: VerificationRequest, say: Callable[[str], None]) -> None:
        self.spark, self.request, self.say = spark, request, say
        self.begun, self.began_at = time.monotonic(), datetime.now(UTC)
        self.ledgers: list[str] = []
        self.unordered: list[int] = []
        """Those of these ledgers whose sinks order the records of a key by something else than the id."""
        self.fans_out = False
        self.topics: Span = {}
        self.lanes: list[Any] = []
        self.window_begin = -1
        """Milliseconds; records up to here without an entry are from before the window."""
        self.reach_begin = -1

    def run(self) -> Result:
        self._read_ends()
        self.say(f"reading {len(self.topics)} topics, {self._records_at_most():,} offsets")
        entries = self._entries().persist(_disk())
        known = self._known(entries).persist(_disk())
        rows = reading.rows_of_table(self.spark, self.request).persist(_disk())
        try:
            return self._judge(entries.drop("ids"), known, rows)
        finally:
            for frame in (rows, known, entries):
                frame.unpersist()

    # ---- what there is

    def _read_ends(self) -> None:
        offsets, give_up_at = Offsets(self.request.properties), time.monotonic() + self.request.patience_s
        there = offsets.topics()
        self.ledgers = [name for name in self.request.ledgers if name in there]
        foreign = self._find_sinks(there, give_up_at)
        if not self.ledgers:
            raise VerificationImpossible(
                f"Kafka has none of the ledger topics {', '.join(self.request.ledgers)}: no harvester has used "
                "exactly-once delivery, or NAME is another. Name the ledger with --ledger."
            )
        if unknown := sorted(set(self.request.topics) - set(there)):
            raise VerificationImpossible(f"Kafka has no topics {', '.join(unknown)}. Correct --topic.")
        self.judged = offsets.now(self.ledgers)
        wanted = self.request.topics or [
            name for name in there if name not in (*self.ledgers, *foreign, *self.request.without)
        ]
        self.topics = offsets.settled(wanted, give_up_at)
        self.ledger_span = offsets.settled(self.ledgers, give_up_at)

    def _find_sinks(self, there: list[str], give_up_at: float) -> list[str]:
        """Add the ledgers of all sinks of this database, under any name. Returns those of other databases."""
        candidates = [name for name in there if name not in self.ledgers] if self.request.finds_sinks else []
        found = sinks.origins(self.request.properties, candidates, give_up_at)
        own = database(self.request.parameters, self.request.table) if any(map(any, found.values())) else ""
        self.ledgers += sorted(name for name, origins in found.items() if own in origins - {""})
        return [name for name in found if name not in self.ledgers]

    def _records_at_most(self) -> int:
        return sum(end - start for parts in self.topics.values() for start, end in parts.values())

    def _entries(self) -> DataFrame:
        """One row per batch, with `is_judged` and its ids."""
        from pyspark.sql import functions as F

        numbers = lookup(dict(zip(self.ledgers, range(len(self.ledgers)), strict=True)))
        ends = {f"{topic}/{lane}": end for topic, parts in self.judged.items() for lane, (_, end) in parts.items()}
        place = F.concat_ws("/", "ledger", F.col("lane").cast("string"))
        found = reading.ledger_entries(self.spark, self.request, self.ledger_span)
        return found.withColumns({
            "ledger_no": numbers[F.col("ledger")],
            "is_judged": F.coalesce(F.col("place") < F.try_element_at(lookup(ends), place), F.lit(False)),
        }).drop("ledger")  # fmt: skip

    def _known(self, entries: DataFrame) -> DataFrame:
        """Records and listed ids side by side. A record that only Kafka has comes without a lane, an id that is only
        listed without a place. A record of another program has `own` false."""
        from pyspark.sql import functions as F

        listed = entries.where("error IS NULL").select(
            F.explode("ids").alias("id"), F.lit(True).alias("own"), *BATCH, "change",
            "is_sink", "is_judged", F.col("at").alias("listed_at"),
        )  # fmt: skip
        found = reading.records(self.spark, self.request, self.topics)
        own = found.withColumns({"own": F.col("id").isNotNull(), "id": F.coalesce("id", "place")})
        self.fans_out = pairing.fans_out(entries)
        if self.fans_out:
            return pairing.paired(own, listed)
        return own.join(listed.drop("is_sink", "is_judged", "listed_at"), ["id", "own"], "full_outer")

    # ---- the questions

    def _judge(self, entries: DataFrame, known: DataFrame, rows: DataFrame) -> Result:
        self.lanes = _lanes(entries)
        if not self.lanes:
            raise VerificationImpossible(
                f"The ledger {', '.join(self.ledgers)} has no entry yet, so there is nothing to verify. Harvest first."
            )
        self.unordered = [
            row["ledger_no"] for row in entries.where("NOT by_id").select("ledger_no").distinct().collect()
        ]
        # A lane whose first batch is here has no earlier ones.
        self.window_begin = max((-1 if lane["is_whole"] else lane["begin_at"] for lane in self.lanes), default=-1)
        self.reach_begin = self._reach_begin(known)
        self.say("comparing batches")
        batches = self._batches(entries, known).persist(_disk())
        try:
            totals = _one(batches.agg(*self._sums()))
            faults = [*self._unreadable(entries), *self._batch_faults(batches, known, totals)]
        finally:
            batches.unpersist()
        self.say("comparing the order of keys")
        faults += self._order(known)
        self.say("searching for records that no ledger lists")
        beside = _one(known.agg(*self._beside_sums()))
        faults += self._unlisted(beside)
        faults += self._not_deleted(known, rows)
        table = _one(rows.selectExpr("count_if(NOT is_dead) AS waiting", "count_if(is_dead) AS dead"))
        nowhere, nowhere_first = self._absent(known, rows)
        return Result(
            at=self.began_at.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - self.begun, 3),
            faults=tuple(sorted(faults, key=lambda fault: list(KINDS).index(fault.kind))),
            batches=totals["judged"],
            records=totals["records"],
            read=beside["read"],
            foreign=beside["foreign"],
            earlier=beside["earlier"],
            out_of_reach=totals["out_of_reach"],
            waiting=table["waiting"],
            dead=table["dead"],
            absent=nowhere,
            absent_first=tuple(nowhere_first),
            unordered=tuple(self.ledgers[number] for number in sorted(self.unordered)),
            topics=tuple(sorted(self.topics)),
        )

    def _reach_begin(self, known: DataFrame) -> int:
        """Up to when topics have deleted records; -1: none has."""
        from pyspark.sql import functions as F

        numbers = {topic: number for number, topic in enumerate(sorted(self.topics))}
        cut = [(numbers[t], n) for t, parts in self.topics.items() for n, (start, _) in parts.items() if start > 0]
        if not cut:
            return -1
        is_cut = reduce(lambda a, b: a | b, [(F.col("topic_no") == t) & (F.col("partition") == n) for t, n in cut])
        firsts = known.where(is_cut).groupBy("topic_no", "partition").agg(F.min("at").alias("at"))
        found = firsts.collect()
        if len(found) < len(cut):  # every record of a partition is gone
            return int(self.began_at.timestamp() * 1000)
        return int(max(row["at"] for row in found)) + _TRANSACTION_MS

    # ---- batches

    def _batches(self, entries: DataFrame, known: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        sums = [
            F.count("place").alias("found"),
            F.count_if(F.col("place").isNull()).alias("missing"),
            F.coalesce(F.sum("sum"), F.lit(0)).alias("sums"),
        ]
        if self.fans_out:
            sums += [F.count_if("extra").alias("extra"), F.count_if("is_mixed").alias("mixed")]
        found = known.where("lane IS NOT NULL").groupBy(*BATCH).agg(*sums)
        wanted = entries.where("error IS NULL AND count > 0")
        if self.fans_out:
            joined = pairing.batches(wanted, found)
        else:
            joined = wanted.join(found, BATCH, "left").withColumns({
                "is_whole": F.expr("missing = 0 AND found = count"), "extra": F.expr("found - (count - missing)"),
            })  # fmt: skip
        return joined.where("is_judged").withColumn("in_reach", F.col("at") > self.reach_begin)

    def _kinds(self) -> dict[str, str]:
        return {
            "missing batch": "in_reach AND missing = count",
            "lost": "in_reach AND missing > 0 AND missing < count",
            "twice": "in_reach AND extra > 0",
            "altered": "in_reach AND is_whole AND sums <> digest",
        }

    def _sums(self) -> Iterator[Column]:
        from pyspark.sql import functions as F

        yield F.expr("count_if(in_reach)").alias("judged")
        yield F.expr("coalesce(sum(count) FILTER (WHERE in_reach), 0)").alias("records")
        yield F.expr("count_if(NOT in_reach)").alias("out_of_reach")
        for kind, condition in self._kinds().items():
            yield F.expr(f"count_if({condition})").alias(kind)

    def _batch_faults(self, batches: DataFrame, known: DataFrame, totals: Any) -> Iterator[Fault]:
        for kind, condition in self._kinds().items():
            if totals[kind]:
                first = batches.where(condition).orderBy("at", *BATCH).first()
                assert first is not None
                yield Fault(kind, totals[kind], self._described(kind, first, known))

    def _described(self, kind: str, batch: Any, known: DataFrame) -> str:
        from pyspark.sql import functions as F

        name = f"{self._batch_name(batch)} of {batch['count']} records"
        mine = known.where(reduce(lambda a, b: a & b, [F.col(column) == batch[column] for column in BATCH]))
        if kind == "missing batch":
            return f"the first is {name}"
        if kind == "altered":
            return f"the first is {name}: each id as listed, digest {batch['sums']} instead of {batch['digest']}"
        if kind == "lost":
            lost = _one(mine.where("place IS NULL").agg(F.min("id").alias("id")))
            return f"the first is id {lost['id']} of {name}, which lacks {batch['missing']}"
        places = F.sort_array(F.collect_set(F.struct("topic_no", "partition", "place"))).alias("places")
        if self.fans_out:
            extra = _one(mine.where("extra").agg(F.min("id").alias("id")))
            mine = known.where((F.col("id") == extra["id"]) & F.col("own"))
        twice = (
            mine.where("place IS NOT NULL").groupBy("id").agg(places).where("size(places) > 1").orderBy("id").first()
        )
        assert twice is not None
        shown = " and ".join(map(self._place, twice["places"][:4]))
        return f"the first is id {twice['id']} of {name}: {shown}"

    def _batch_name(self, row: Any) -> str:
        return f"batch {row['batch']} of lane {row['lane']} in {self.ledgers[row['ledger_no']]}"

    def _place(self, row: Any) -> str:
        return f"{sorted(self.topics)[row['topic_no']]}[{row['partition']}] offset {row['place']}"

    def _unreadable(self, entries: DataFrame) -> Iterator[Fault]:
        found = entries.where("error IS NOT NULL AND is_judged")
        if count := found.count():
            first = found.orderBy("at").first()
            assert first is not None
            yield Fault("unreadable", count, f"{self.ledgers[first['ledger_no']]}, {first['error']}")

    # ---- order

    def _order(self, known: DataFrame) -> Iterator[Fault]:
        """In each key of a partition, the batches ascend, and the ids in each batch. Repeated ids are another
        question."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        rank = F.struct("change", "batch", "id")
        line = Window.partitionBy("topic_no", "partition", "key", "ledger_no").orderBy("place")
        ordered = known.where(~F.col("ledger_no").isin(self.unordered)) if self.unordered else known
        lined = ordered.where("place IS NOT NULL AND key IS NOT NULL AND lane IS NOT NULL").select(
            "topic_no", "partition", "place", "id", "key", *BATCH, "change",
            rank.alias("rank"), F.lag(rank).over(line).alias("before"),
        )  # fmt: skip
        wrong = lined.where("before > rank")
        told = _one(
            wrong.agg(F.count("*").alias("count"), F.min(F.struct("topic_no", "partition", "place")).alias("at"))
        )
        if told["count"]:
            topic_no, partition, place = told["at"]
            first = wrong.where(
                (F.col("topic_no") == topic_no) & (F.col("partition") == partition) & (F.col("place") == place)
            ).first()
            assert first is not None
            yield Fault(
                "order",
                told["count"],
                f"the first is id {first['id']} of {self._batch_name(first)}, {self._place(first)}: it follows id "
                f"{first['before']['id']} of batch {first['before']['batch']} of the same key",
            )

    # ---- what no ledger lists

    def _beside_sums(self) -> Iterator[Column]:
        from pyspark.sql import functions as F

        unlisted = f"own AND lane IS NULL AND at > {self.window_begin}"
        yield F.count("place").alias("read")
        yield F.expr("count_if(NOT own)").alias("foreign")
        yield F.expr(f"count_if(own AND lane IS NULL AND at <= {self.window_begin})").alias("earlier")
        yield F.expr(f"count_if({unlisted})").alias("unlisted")
        yield F.expr(f"min(struct(topic_no, partition, place, id)) FILTER (WHERE {unlisted})").alias("first")

    def _unlisted(self, beside: Any) -> Iterator[Fault]:
        if beside["unlisted"]:
            first = beside["first"]
            yield Fault("unlisted", beside["unlisted"], f"the first is id {first['id']}, {self._place(first)}")

    # ---- the table

    def _not_deleted(self, known: DataFrame, rows: DataFrame) -> Iterator[Fault]:
        """The records of a lane's last batch may still be in the table; of a sink, those of the last two."""
        from pyspark.sql import functions as F

        waiting = rows.where("NOT is_dead").select("id").join(known.where("lane IS NOT NULL AND own"), "id")
        limits = [
            (F.col("ledger_no") == lane["ledger_no"])
            & (F.col("lane") == lane["lane"])
            & (F.col("batch") <= lane["last"] - (2 if lane["is_sink"] else 1))
            for lane in self.lanes
            if lane["last"] is not None
        ]
        if limits:
            found = waiting.where(reduce(lambda a, b: a | b, limits))
            told = _one(found.agg(F.countDistinct("id").alias("count"), F.min("id").alias("id")))
            if told["count"]:
                yield Fault("not deleted", told["count"], f"the first is id {told['id']}")

    def _absent(self, known: DataFrame, rows: DataFrame) -> tuple[int, list[int]]:
        """Ids between the lowest and the highest listed one that are in no place."""
        from pyspark.sql import functions as F

        ends = _one(known.where("lane IS NOT NULL").agg(F.min("id").alias("low"), F.max("id").alias("high")))
        if ends["low"] is None:
            return 0, []
        ids = known.where("own").select("id").union(rows.select("id"))
        return absent(ids, max(1, ends["low"]), ends["high"])


def _lanes(entries: DataFrame) -> list[Any]:
    """Of each lane: where its unbroken run of batches begins, and the last batch that is checked."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    line = Window.partitionBy("ledger_no", "lane").orderBy("batch")
    runs = entries.where("error IS NULL AND batch >= 0").withColumn("before", F.lag("batch").over(line))
    is_begin = "before IS NULL OR batch > before + 1"
    return (
        runs.groupBy("ledger_no", "lane", "is_sink")
        .agg(
            F.expr(f"max_by(at, batch) FILTER (WHERE {is_begin})").alias("begin_at"),
            F.expr(f"max(batch) FILTER (WHERE {is_begin}) <= IF(is_sink, 0, 1)").alias("is_whole"),
            F.expr("max(batch) FILTER (WHERE is_judged)").alias("last"),
        )
        .collect()
    )


def _one(frame: DataFrame) -> Any:
    row = frame.first()
    assert row is not None, "an aggregate has one row"
    return row


def _disk() -> Any:
    from pyspark import StorageLevel

    return StorageLevel.DISK_ONLY
