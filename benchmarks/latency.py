"""Rows about time: from the return of a record's commit until a read_committed consumer has it.

Writer, harvester, both servers and the consumer share the machine. Each record is a transaction of its own. The
consumer is a process of its own; all use the machine's monotonic clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.command import harvesting
from benchmarks.consumers import Watch
from benchmarks.drains import EXACTLY, Drains
from benchmarks.report import ratio, say
from benchmarks.servers import PARTITIONS, new_topic
from outbox import wakeups

SETTLE_S = 1.0


def warm(drains: Drains) -> None:
    _measure(drains, [1 / 1000] * 20_000)


def rates(
    drains: Drains, seconds: float, partitions: Sequence[int] = (1, PARTITIONS), per_s: Sequence[int] = (200, 1000)
) -> None:
    """A broker verifies each partition of each transaction, one after the other. So the number of partitions counts if
    transactions are small."""
    for count in partitions:
        for rate in per_s:
            found = _measure(drains, [1 / rate] * int(rate * seconds), count)
            _show(drains, f"latency at {rate:,} records/s, partitions: {count}", found, "<= 8", "<= 40")


def silences(drains: Drains, silence_s: float, count: int, *, brief: bool = False) -> None:
    """A record after a silence: with polling, and woken."""
    label = f"first record after {silence_s:g} s of silence"
    polled = _measure(drains, [silence_s] * count)
    _show(drains, f"{label}, polling", polled, "<= 40", "")
    if brief:
        return
    drains.database.connection.execute(wakeups.install("outbox").encode())
    try:
        woken = _measure(drains, [silence_s] * count, NOTIFY="true")
        _show(drains, f"{label}, NOTIFY", woken, "", "")
        busy = _measure(drains, [1 / 200] * 600, NOTIFY="true")
        _show(drains, "latency at 200 records/s, NOTIFY", busy, "", "")
    finally:
        drains.database.connection.execute(wakeups.remove("outbox").encode())


def flat(drains: Drains, batches: int) -> None:
    """150 small batches a second while a transaction elsewhere keeps every dead row: the last ones against the
    first."""
    with drains.database.connect() as other, other.transaction():
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1")
        taken_s = _measure(drains, [1 / 150] * batches)
    share = max(1, batches // 10)
    tenths = [statistics.median(taken_s[place : place + share]) for place in range(0, 10 * share, share)]
    first, last = tenths[0], tenths[-1]
    row = drains.table.row(f"latency, last tenth of {batches:,}, xmin pinned", "ms", shape="{:.1f}".format)
    row.add(last * 1000, "tenth by tenth: " + " ".join(f"{seconds * 1000:.1f}" for seconds in tenths))
    drains.table.row("  of the first tenth", "", "<= 1.1", ratio).add(last / first)


def _show(drains: Drains, label: str, taken_s: list[float], median: str, p99: str) -> None:
    millis = sorted(seconds * 1000 for seconds in taken_s)
    table, shape = drains.table, "{:.1f}".format
    place = min(len(millis) - 1, int(len(millis) * 0.99))
    table.row(f"{label}, median", "ms", median, shape).add(statistics.median(millis), drains.last_stages)
    if p99:
        table.row(f"{label}, p99", "ms", p99, shape).add(millis[place], f"largest {millis[-1]:.0f}")


def _measure(drains: Drains, pauses_s: list[float], partitions: int = PARTITIONS, **settings: Any) -> list[float]:
    topic = new_topic(drains.servers, partitions)
    drains.database.empty()
    with harvesting(drains.database, topic, DELIVERY=EXACTLY, **settings) as harvest:
        harvest.said("lane_taken")
        watch = Watch(drains.servers, topic)
        written = write(drains, topic, pauses_s)
        seen = watch.seen(len(written))
    missing = written.keys() - seen.keys()
    assert not missing, f"{len(missing)} of {len(written)} did not arrive"
    taken_s = [seen[number] - at for number, at in written.items()]
    drains.last_stages = harvest.stages_per_batch
    late = max(taken_s)
    say(f"{len(written)} records, median {statistics.median(taken_s) * 1000:.1f} ms, largest {late * 1000:.0f} ms")
    return taken_s


def write(drains: Drains, topic: str, pauses_s: list[float]) -> dict[int, float]:
    written: dict[int, float] = {}
    with drains.database.connect() as connection:
        due = time.monotonic() + SETTLE_S
        for number, pause_s in enumerate(pauses_s):
            time.sleep(max(0.0, due - time.monotonic()))
            connection.execute(
                "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, %s)",
                [topic, f"key-{number % 100}", str(number)],
                prepare=True,
            )
            written[number] = time.monotonic()
            due += pause_s
    return written
