"""Rows about emptying a full table: rate, ratio to the slowest stage alone, stages, sizes, lanes, headers, costs.

The clock of a drain runs from the moment when the harvester says that it owns its lanes until the last DELETE is
committed; what starting, the election and the takeover take is told apart.
"""

from __future__ import annotations

from typing import Any

from benchmarks import ceilings, consumers
from benchmarks.command import Drained, harvesting
from benchmarks.report import Table, ratio, say
from benchmarks.servers import Costs, Database, Fill, new_topic

EXACTLY, CLASSIC = "exactly-once", "at-least-once"


class Drains:
    def __init__(self, table: Table, database: Database, server: str, servers: str) -> None:
        self.table, self.database, self.server, self.servers = table, database, server, servers
        self._checked: set[str] = set()
        self.last_stages = ""

    def drain(self, fill: Fill, *, lanes: int = 1, check: str = "", **settings: Any) -> Drained:
        """Fill and empty the table once. What `check` names is verified record by record, once per name."""
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

    def main(self, records: int) -> None:
        """The drain, its ceilings of the same round, and the variants that must stay near it."""
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
        for name, other in {
            "200,000 keys": self.drain(Fill(records, keys=200_000), check="many keys"),
            "one key": self.drain(Fill(records, keys=1), check="one key"),
            "6 lanes in one process": self.drain(fill, lanes=6, check="lanes"),
        }.items():
            self._beside(name, other, found, "0.85 or more")
        without = self.drain(fill, ID_HEADER="")
        self._beside("without the outbox-id header", without, found, "")
        self._costs("exactly-once", found)

    def _beside(self, name: str, other: Drained, base: Drained, goal: str) -> None:
        self.table.row(f"drain, {name}", "records/s").add(other.rate, other.told)
        self.table.row("  of the drain above, " + name, "", goal, ratio).add(other.rate / base.rate)

    def classic(self, records: int) -> None:
        found = self.drain(Fill(records), DELIVERY=CLASSIC)
        self.table.row("at-least-once drain, 1,000 keys", "records/s").add(found.rate)
        self._costs("at-least-once", found)

    def _costs(self, name: str, found: Drained) -> None:
        millions = found.records / 1e6
        for part, seconds in {
            "harvester": found.harvester_s, "PostgreSQL": found.postgres_s, "Kafka": found.kafka_s,
        }.items():  # fmt: skip
            self.table.row(f"cost, {name}: {part}", "CPU s per million", shape="{:.1f}".format).add(seconds / millions)
        self.table.row(f"cost, {name}: WAL", "bytes per record").add(found.wal_bytes / found.records)

    def payloads(self) -> None:
        """Larger values: megabytes, beside what the client alone can produce in the same round."""
        for name, fill in {
            "1 kB": Fill(100_000, value_bytes=1_000),
            "10 kB": Fill(20_000, value_bytes=10_000),
            "5 headers": Fill(200_000, headers=5),
        }.items():
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
