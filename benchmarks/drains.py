"""Rows about emptying a full table: rate, ratio to the slowest stage alone, stages, sizes, lanes, headers, costs.

The clock of a drain starts when the harvester logs that it owns its lanes, and stops when the last DELETE is committed.
Start, election and takeover are not in it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import ceilings, consumers
from benchmarks.command import Drained, harvesting
from benchmarks.report import Table, ratio, say
from benchmarks.servers import Costs, Database, Fill, new_topic

EXACTLY, GOHARVEST = "exactly-once", "at-least-once"
RECORDS = 400_000
FEW = 100_000
"""Of the brief form."""
BASELINE_TIMEOUT_S = 120.0
BASELINE_LEAST = (
    2_000.0  # records/s; if the older method is slower, the machine was too busy, and the ratio shows nothing
)
GOHARVEST_KEYS = 10_000
_WARM_SIX_LANES = 4  # drains
PAYLOADS = {
    "1 kB": Fill(60_000, value_bytes=1_000),
    "10 kB": Fill(10_000, value_bytes=10_000),
    "5 headers": Fill(100_000, headers=5),
}
_SCANS = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'outbox'"


class Drains:
    def __init__(self, table: Table, database: Database, server: str, servers: str) -> None:
        self.table, self.database, self.server, self.servers = table, database, server, servers
        self._checked: set[str] = set()
        self.last_stages = ""
        self.last_rate = float("nan")
        """Of the drain of this round."""
        self._older: list[float] = []
        self._six_lanes_warmed = 0

    def drain(self, fill: Fill, *, lanes: int = 1, check: str = "", **settings: Any) -> Drained:
        """Fill and empty the table once. With `check`, verify every record, once per name."""
        topic = new_topic(self.servers)
        self.database.fill(topic, fill)
        return self.empty(topic, fill, lanes=lanes, check=check, **settings)

    def empty(self, topic: str, fill: Fill, *, lanes: int = 1, check: str = "", **settings: Any) -> Drained:
        delivery = settings.setdefault("DELIVERY", EXACTLY)
        with harvesting(self.database, topic, LANES=lanes, **settings) as harvest:
            costs = Costs(self.database, self.server, self.servers)
            since = harvest.said("lane_taken" if delivery == EXACTLY else "leader_acquired", lanes)
            found = harvest.drained(fill.records, costs, since)
        found.stages = harvest.stages
        if check and check not in self._checked:
            self._checked.add(check)
            keys = consumers.check(self.servers, topic, fill.records)
            say(f"checked {check}: {fill.records:,} records, none missing, none twice, {keys:,} keys in order")
        say(f"{fill} lanes={lanes} {settings}: {found.rate:,.0f}/s, {found.memory_mb:.0f} MB; {found.told}")
        return found

    # ---- rows

    def main(self, records: int, *, brief: bool = False) -> None:
        """The drain, its ceilings of the same round, and the variants that must not be much slower."""
        fill = Fill(records)
        topic = new_topic(self.servers)
        self.database.fill(topic, fill)
        alone = {
            "copy out": ceilings.copy_out(self.database, records),
            "produce": ceilings.produce(self.database, self.servers, topic, fill),
            "delete": ceilings.delete(self.database, records),
        }
        for name, rate in alone.items():
            self.table.row(f"stage alone: {name}", "records/s").add(rate)
        found = self.drain(fill, check="drain")
        slowest = min(alone.values())
        row = self.table.row("drain, 1,000 keys", "records/s")
        row.add(found.rate, found.told)
        self.table.row("  of the slowest stage alone", "", ">= 0.30 (0.50)", ratio).add(found.rate / slowest)
        self.last_rate = found.rate
        if brief:
            return
        for name, other in {
            "200,000 keys": self.drain(Fill(records, keys=200_000), check="many keys"),
            "one key": self.drain(Fill(records, keys=1), check="one key"),
        }.items():
            self._beside(name, other, found, ">= 0.85")
        without = self.drain(fill, ID_HEADER="")
        self._beside("without the outbox-id header", without, found, "")
        self._costs("exactly-once", found)

    def _beside(self, name: str, other: Drained, base: Drained, goal: str, what: str = "drain") -> None:
        self.table.row(f"{what}, {name}", "records/s").add(other.rate, other.told)
        above = "the drain" if what == "drain" else "one lane"
        self.table.row(f"  of {above} above, {name}", "", goal, ratio).add(other.rate / base.rate)

    def lanes(self, records: int, warm: int = _WARM_SIX_LANES) -> None:
        """A backlog that one transaction commits before harvesters that own their lanes already: one lane, and six.

        Six lanes send many small requests instead of few large ones, and the broker's compilers start again."""
        while self._six_lanes_warmed < warm:
            self._six_lanes_warmed += 1
            self._committed_at_once(Fill(records), 6)
        one = self._committed_at_once(Fill(records), 1)
        six = self._committed_at_once(Fill(records), 6)
        self.table.row("backlog committed at once, 1 lane", "records/s").add(one.rate, one.told)
        self._beside("6 lanes in one process", six, one, ">= 0.85", "backlog committed at once")

    def _committed_at_once(self, fill: Fill, lanes: int) -> Drained:
        topic = new_topic(self.servers)
        self.database.empty()
        with harvesting(self.database, topic, LANES=lanes, DELIVERY=EXACTLY) as harvest:
            harvest.said("lane_taken", lanes)
            with self.database.connection.transaction():
                self.database.insert(topic, fill)
                with self.database.connect() as other:
                    other.execute("CHECKPOINT")
                highest = self.database.one("SELECT max(id) FROM outbox")
                costs = Costs(self.database, self.server, self.servers)
            found = harvest.drained(fill.records, costs, time.monotonic(), highest)
        found.stages = harvest.stages
        say(f"{fill} lanes={lanes}: {found.rate:,.0f}/s, {found.memory_mb:.0f} MB; {found.told}")
        return found

    def pinned(self, records: int, *, brief: bool = False) -> None:
        """While a transaction elsewhere keeps every dead row alive, and without autovacuum; compared with a usual
        drain."""
        fill = Fill(records)
        base = self.drain(fill)
        with self.database.connect() as other, other.transaction():
            other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            other.execute("SELECT 1")
            held = self.drain(fill)
        self._beside("xmin pinned by another transaction", held, base, ">= 0.95")
        if brief:
            return
        for name in ("outbox", "outbox_purged"):
            self.database.connection.execute(f"ALTER TABLE {name} SET (autovacuum_enabled = off)".encode())
        without = self.drain(fill)
        for name in ("outbox", "outbox_purged"):
            self.database.connection.execute(f"ALTER TABLE {name} RESET (autovacuum_enabled)".encode())
        self._beside("autovacuum off", without, base, ">= 0.95")

    def backlog(self, records: int, usual: int = RECORDS) -> None:
        """Many times the usual backlog: the same rate, the same memory, and no plan that reads the whole table."""
        base = self.drain(Fill(usual))
        topic, fill = new_topic(self.servers), Fill(records)
        self.database.fill(topic, fill)
        before = self.database.one(_SCANS)
        found = self.empty(topic, fill, check="backlog")
        scans = self.database.one(_SCANS) - before
        self._beside(f"backlog of {records:,}", found, base, ">= 0.90")
        self.table.row("  resident memory", "MB", "< 150").add(found.memory_mb)
        self.table.row("  sequential scans of the table", "", "0").add(scans)

    def baseline(self, *, brief: bool = False) -> None:
        """The older method: one DELETE per record."""
        rate = self._one_by_one(Fill(5_000))
        self.table.row("one DELETE per record, 1,000 keys", "records/s").add(rate)
        self._times("one DELETE per record", rate, ">= 40")
        if brief:
            return
        self.table.row("one DELETE per record, one key", "records/s").add(self._one_by_one(Fill(500, keys=1)))

    def _one_by_one(self, fill: Fill) -> float:
        from benchmarks.baseline_one_by_one import OneByOne

        self.database.fill(new_topic(self.servers), fill)
        begun = time.monotonic()
        with OneByOne(self.database.url, self.servers) as older:
            while older.purged < fill.records and time.monotonic() - begun < BASELINE_TIMEOUT_S:
                time.sleep(0.005)
            return older.purged / (time.monotonic() - begun)

    def debezium(self, records: int) -> None:
        from benchmarks import debezium

        rate = debezium.rate(self.servers, records)
        self.table.row("Debezium's outbox router, 1,000 keys", "records/s").add(rate, "at least once")
        self._times("Debezium's outbox router", rate, ">= 6")

    def _times(self, name: str, rate: float, goal: str) -> None:
        if math.isnan(self.last_rate):  # the part alone
            self.last_rate = self.drain(Fill(RECORDS)).rate
        self.table.row(f"  ratio of the drain to {name}", "", goal, "{:.1f}".format).add(self.last_rate / rate)

    def at_least_once(self, records: int, *, brief: bool = False) -> None:
        """At-least-once, and its ratio to the older method of the same round, with as many keys."""
        many = self.drain(Fill(records, keys=GOHARVEST_KEYS), DELIVERY=GOHARVEST)
        older_many = self._one_by_one(Fill(records // 5, keys=GOHARVEST_KEYS))
        self._older.append(older_many)
        self._beside_older(f"{GOHARVEST_KEYS:,} keys", many.rate, older_many, ">= 10")
        if brief:
            return
        hot = self.drain(Fill(1_000, keys=1), DELIVERY=GOHARVEST)
        older_hot = self._one_by_one(Fill(500, keys=1))
        self._beside_older("one key", hot.rate, older_hot, ">= 2")
        self._costs("at-least-once", many)

    def _beside_older(self, keys: str, rate: float, older: float, goal: str) -> None:
        lowest = min(self._older)  # of all rounds: the row shows its last note
        note = (
            ""
            if lowest >= BASELINE_LEAST
            else f"does not count: older method {lowest:,.0f}/s, under {BASELINE_LEAST:,.0f}"
        )
        self.table.row(f"at-least-once drain, {keys}", "records/s").add(rate)
        self.table.row(f"one DELETE per record beside it, {keys}", "records/s").add(older)
        name = f"  ratio of at-least-once to one DELETE per record, {keys}"
        self.table.row(name, "", goal, "{:.1f}".format).add(rate / older, note)

    def _costs(self, name: str, found: Drained) -> None:
        millions = found.records / 1e6
        for part, seconds in {
            "harvester": found.harvester_s, "PostgreSQL": found.postgres_s, "Kafka": found.kafka_s,
        }.items():  # fmt: skip
            self.table.row(f"cost, {name}: {part}", "CPU s per million", shape="{:.1f}".format).add(seconds / millions)
        self.table.row(f"cost, {name}: WAL", "bytes per record").add(found.wal_bytes / found.records)

    def payloads(self, names: Sequence[str] = tuple(PAYLOADS)) -> None:
        """Larger values: megabytes, compared with what the client can produce by itself in the same round."""
        for name in names:
            fill = PAYLOADS[name]
            topic = new_topic(self.servers)
            self.database.fill(topic, fill)
            alone = ceilings.produce(self.database, self.servers, topic, fill)
            found = self.drain(fill, check=name)
            if fill.headers:
                row, scale = self.table.row(f"drain, {name}", "records/s"), 1.0
            else:
                row, scale = self.table.row(f"drain, values of {name}", "MB/s"), fill.value_bytes / 1e6
            row.add(found.rate * scale, f"client alone {alone * scale:,.0f}, {found.memory_mb:.0f} MB resident")
            self.table.row(f"  of the client alone, {name}", "", "", ratio).add(found.rate / alone)
