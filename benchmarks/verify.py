"""Rows about `outbox_verify`: its rate compared with a plain `count()` of the same topic, and its memory.

A harvester has delivered the records, so the ledger is a genuine one. The count is Spark's, by the same connector, of
the same offsets, in a warm session of `local[2]`. The large form runs the command as a process of its own. Its memory
is that of all its processes: the JVM, and Spark's Python workers.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.drains import Drains
from benchmarks.report import ratio, say
from benchmarks.servers import MANAGE, Fill, new_topic
from benchmarks.spark import session
from outbox.spark.verify.findings import VerificationRequest

VERIFIED, VERIFIED_LARGE = 1_000_000, 10_000_000
_GIVE_UP_S = 300.0
_SAMPLES_S = 0.25


def verified(drains: Drains, records: int = VERIFIED) -> None:
    """A drained table, in one session with the count; each figure is the median of three, once warm."""
    from outbox.spark.verify.run import verify

    request, spark = _delivered(drains, records), session()
    spark.conf.set("spark.sql.shuffle.partitions", "32")  # as `outbox_verify` has it; Spark's 200 cost 30 s here
    counts, verifications = [], []
    for _ in range(4):
        counts.append(_count(request))
        result = verify(spark, request)
        if not result.is_clean or result.records != records:
            raise AssertionError("\n".join(result.lines()))
        verifications.append(records / result.seconds)
    count, rate = statistics.median(counts[1:]), statistics.median(verifications[1:])
    drains.table.row("Spark, count() of the topic", "records/s").add(count)
    drains.table.row("Spark, verification", "records/s").add(rate, f"{records:,} records")
    drains.table.row("  verification / count() of it", "", "", ratio).add(rate / count)


def _delivered(drains: Drains, records: int) -> VerificationRequest:
    """A harvester delivers the records. Returns the request of the verification."""
    place, topic = drains.database, new_topic(drains.servers)
    fill = Fill(records)
    place.fill(topic, fill)
    drains.empty(topic, fill)
    return VerificationRequest(
        parameters={"conninfo": place.url},
        table="outbox",
        properties={"bootstrap.servers": drains.servers},
        ledgers=(f"{topic}.ledger",),
        topics=(topic,),
    )


def _count(request: VerificationRequest) -> float:
    """Records per second of a plain count."""
    from outbox.spark.verify.reading import Offsets, kafka_frame

    span = Offsets(request.properties).settled(request.topics, time.monotonic() + _GIVE_UP_S)
    begun = time.monotonic()
    counted: int = kafka_frame(session(), request, span).count()
    return counted / (time.monotonic() - begun)


def large(drains: Drains, records: int = VERIFIED_LARGE) -> None:
    """The command over a backlog that does not fit its memory."""
    request = _delivered(drains, records)
    counts = [_count(request) for _ in range(2)]
    environment = {
        **drains.database.environment,
        "OUTBOX_NAME": request.ledgers[0].removesuffix(".ledger"),
        "DJANGO_SETTINGS_MODULE": "example_project.settings",
    }
    command = [*MANAGE, "outbox_verify", "--json", "--master", "local[2]", "--topic", request.topics[0]]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        memory = Memory(process.pid)
        assert process.stdout is not None
        told = json.loads(process.stdout.read() or "{}")
    peak = memory.stop()
    if process.returncode or told.get("records") != records:
        raise AssertionError(f"the verification ended with {process.returncode}: {told}")
    rate = records / told["seconds"]
    say(f"verification of {records:,} records: {told['seconds']:.1f} s, peak memory in MB: {peak}")
    name = f"{records / 1e6:g} million records"
    drains.table.row(f"Spark, count() of {name}", "records/s").add(counts[1])
    drains.table.row(f"outbox_verify of {name}", "records/s").add(rate, f"{told['batches']:,} batches")
    drains.table.row("  verification / count()", "", "", ratio).add(rate / counts[1])
    drains.table.row("  memory of all its processes", "MB", "<= 2,000").add(peak["all"], _shown(peak))


def _shown(peak: dict[str, float]) -> str:
    return ", ".join(f"{name} {megabytes:,.0f}" for name, megabytes in peak.items() if name != "all")


class Memory:
    """The most memory that a process and its descendants have had at one moment. Shared memory counts once: a process
    counts with its share of it (PSS)."""

    def __init__(self, pid: int) -> None:
        self._pid, self._peak = pid, dict.fromkeys(("all", "java", "python"), 0.0)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, float]:
        """Megabytes: of all at one moment, and of each kind at its own."""
        self._is_over.set()
        self._thread.join()
        return self._peak

    def _look(self) -> None:
        while not self._is_over.wait(_SAMPLES_S):
            now = dict.fromkeys(self._peak, 0.0)
            for pid, name in _family(self._pid):
                found = _megabytes(pid)
                now["all"] += found
                now["java" if name == "java" else "python"] += found
            self._peak = {name: max(self._peak[name], now[name]) for name in now}


def _family(pid: int) -> Iterator[tuple[int, str]]:
    try:
        yield pid, Path(f"/proc/{pid}/comm").read_text().strip()
        threads = os.listdir(f"/proc/{pid}/task")
        children = [Path(f"/proc/{pid}/task/{thread}/children").read_text().split() for thread in threads]
    except OSError:  # it has ended
        return
    for child in {int(text) for texts in children for text in texts}:
        yield from _family(child)


def _megabytes(pid: int) -> float:
    try:
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0
