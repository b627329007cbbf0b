"""`manage.py harvest` and `manage.py consume` as processes of their own, as they run in production.

This module reads only their stderr, and notes the time of each line.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.servers import MANAGE, ROOT, Costs, Database, cpu_s

START_TIMEOUT_S = 120.0
DRAIN_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 30.0
_TAIL = 1_000  # ids below the highest that are read to see whether the end is near


@dataclass
class Drained:
    """The result of one drain of the table."""

    records: int
    seconds: float
    harvester_s: float
    postgres_s: float
    kafka_s: float
    wal_bytes: float
    memory_mb: float
    stages: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.records / self.seconds

    @property
    def told(self) -> str:
        return " ".join(f"{name}={seconds:.2f}" for name, seconds in self.stages.items())


class Command:
    """One process of a command."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._lines: list[tuple[float, str]] = []
        self._said = threading.Condition()
        self.process = subprocess.Popen(arguments, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._said:
                self._lines.append((time.monotonic(), line.rstrip()))
                self._said.notify_all()

    def said(self, pattern: str, count: int = 1, timeout_s: float = START_TIMEOUT_S) -> float:
        """The time of the count-th line with the pattern; waits for it."""
        with self._said:
            found = self._said.wait_for(
                lambda: len(self._found(pattern)) >= count or self.process.poll() is not None, timeout_s
            )
            lines = self._found(pattern)
        if not found or len(lines) < count:
            sys.exit(f"The process did not log {pattern!r} ({self.process.poll()=}):\n" + self.log)
        return lines[count - 1][0]

    def _found(self, pattern: str) -> list[tuple[float, str]]:
        return [line for line in self._lines if re.search(pattern, line[1])]

    @property
    def log(self) -> str:
        return "\n".join(text for _, text in self._lines[-40:])

    @property
    def memory_mb(self) -> float:
        """The largest resident memory until now."""
        return self._status_mb("VmHWM:")

    @property
    def resident_mb(self) -> float:
        """Now."""
        return self._status_mb("VmRSS:")

    def _status_mb(self, name: str) -> float:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith(name):
                    return int(line.split()[1]) / 1024
        return float("nan")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(5)


class Harvest(Command):
    """One harvester. Use `harvesting`."""

    def __init__(self, database: Database, name: str, **settings: Any) -> None:
        given = {f"OUTBOX_{key}": str(value) for key, value in {"NAME": name, **settings}.items()}
        self._database = database
        super().__init__([*MANAGE, "harvest"], {**database.environment, **given})

    @property
    def stages(self) -> dict[str, float]:
        """The seconds of each stage, as lanes and their reader log them when they end; summed over the lanes."""
        total: dict[str, float] = {}
        for _, line in self._found("lane_ended|reading_ended"):
            for name, seconds in re.findall(r"(\w+)_s=([0-9.]+)", line):
                total[name] = total.get(name, 0.0) + float(seconds)
        return total

    @property
    def stages_per_batch(self) -> str:
        """Milliseconds of each stage, divided by the batches."""
        batches = sum(int(text) for _, line in self._found("lane_ended") for text in re.findall(r"batches=(\d+)", line))
        shown = " ".join(f"{name}={seconds / batches * 1000:.1f}" for name, seconds in self.stages.items() if batches)
        return f"{batches:,} batches, ms each: {shown}"

    def drained(self, records: int, costs: Costs, since: float, highest: int | None = None) -> Drained:
        """Wait until the table is empty; the clock stops with the last DELETE."""
        if highest is None:
            highest = int(self._database.one("SELECT coalesce(max(id), 0) FROM outbox") or 0)
        used_s = cpu_s(self.process.pid)
        self._wait_empty(highest)
        seconds = time.monotonic() - since
        harvester_s = cpu_s(self.process.pid) - used_s
        postgres_s, kafka_s, wal = costs.taken()
        return Drained(records, seconds, harvester_s, postgres_s, kafka_s, wal, self.memory_mb)

    def _wait_empty(self, highest: int) -> None:
        give_up_at = time.monotonic() + DRAIN_TIMEOUT_S
        while self._database.one("SELECT EXISTS (SELECT FROM outbox WHERE id > %s)", highest - _TAIL):
            self.check(give_up_at)
            time.sleep(0.005)
        while self._database.one("SELECT EXISTS (SELECT FROM outbox)"):
            self.check(give_up_at)
            time.sleep(0.005)

    def check(self, give_up_at: float) -> None:
        """Whether there is still something to wait for."""
        if time.monotonic() > give_up_at or self.process.poll() is not None:
            sys.exit(f"The harvester did not empty the table ({self.process.poll()=}):\n{self.log}")


@contextlib.contextmanager
def harvesting(database: Database, name: str, **settings: Any) -> Iterator[Harvest]:
    harvest = Harvest(database, name, **settings)
    try:
        yield harvest
    finally:
        harvest.stop()
