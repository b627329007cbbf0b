"""The one judge of every fault test: writers that log what they committed, and a result on what arrived.

    with Writer(url, topic, keys=20) as writer:
        ...faults...
    result = judge([writer.log], read_topic(servers, topic))
    result.assert_kept(repeats_max=...)

The writer knows nothing of the harvester, and the judge nothing of either: it compares two lists.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import psycopg

_names = itertools.count(1)
Entry = tuple[str, int]  # key, sequence


class Received(Protocol):
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


@dataclass
class Log:
    """Every (key, sequence) is in one of the lists; a sequence is drawn once."""

    committed: list[Entry] = field(default_factory=list)
    rolled_back: list[Entry] = field(default_factory=list)
    unknown: list[Entry] = field(default_factory=list)  # the connection broke during COMMIT


class Writer:
    """Inserts rows in transactions, some rolled back, until stopped. Its keys are its own: ids are in commit order."""

    def __init__(
        self,
        url: str,
        topic: str,
        *,
        keys: int = 20,
        rate: float = 500.0,
        rollbacks: float = 0.1,
        seed: int = 0,
        table: str = "outbox",
    ) -> None:
        self.url, self.topic, self.table = url, topic, table
        self.log = Log()
        self.name = f"w{next(_names)}"
        self._keys = [f"{self.name}-{number}" for number in range(keys)]
        self._pause_s = 10 / rate
        self._rollbacks = rollbacks
        self._random = random.Random(seed)
        self._sequences: dict[str, int] = dict.fromkeys(self._keys, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def write(self, transactions: int) -> Log:
        """So many transactions, here and now."""
        with psycopg.connect(self.url, connect_timeout=5) as connection:
            for _ in range(transactions):
                self._transact(connection)
        return self.log

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with psycopg.connect(self.url, connect_timeout=5, options="-c statement_timeout=10000") as connection:
                    while not self._stop.wait(self._pause_s):
                        self._transact(connection)
            except psycopg.Error:
                time.sleep(0.05)  # the database is away, as tests have it

    def _transact(self, connection: psycopg.Connection[Any]) -> None:
        entries = self._draw()
        try:
            connection.cursor().executemany(
                f"INSERT INTO {self.table} (kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, %s)",  # type: ignore[arg-type]
                [(self.topic, key, str(sequence)) for key, sequence in entries],
            )
            if self._random.random() < self._rollbacks:
                connection.rollback()
                self.log.rolled_back += entries
                return
        except psycopg.Error:
            self.log.rolled_back += entries
            raise
        try:
            connection.commit()
        except psycopg.Error:
            self.log.unknown += entries
            raise
        self.log.committed += entries

    def _draw(self) -> list[Entry]:
        entries = []
        for _ in range(self._random.randint(1, 20)):
            key = self._random.choice(self._keys)
            self._sequences[key] += 1
            entries.append((key, self._sequences[key]))
        return entries


@dataclass(frozen=True)
class Result:
    committed: int
    lost: list[Entry]
    phantoms: list[Entry]
    repeats: int  # further copies of a record that stand right behind it
    regressions: list[tuple[str, int, int]]  # key, sequence before, smaller sequence behind it

    def assert_kept(self, *, repeats_max: int | None = None, regressions_max: int = 0) -> None:
        assert self.committed, "nothing was written: the test shows nothing"
        assert not self.lost, f"{len(self.lost)} of {self.committed} records are lost: {self.lost[:10]}"
        assert not self.phantoms, f"{len(self.phantoms)} records were never committed: {self.phantoms[:10]}"
        count = len(self.regressions)
        assert count <= regressions_max, f"{count} times a key went back: {self.regressions[:10]}"
        if repeats_max is not None:
            assert self.repeats <= repeats_max, f"{self.repeats} repeats, at most {repeats_max} can be explained"


def judge(logs: Iterable[Log], received: Sequence[Received]) -> Result:
    """Compare what was committed with what arrived, per key in the order of its partition."""
    found = [(record.key.decode(), int(record.value)) for record in received if record.key and record.value]
    logs = list(logs)
    committed = {entry for log in logs for entry in log.committed}
    allowed = committed | {entry for log in logs for entry in log.unknown}
    arrived = Counter(found)
    by_key: dict[str, list[int]] = defaultdict(list)
    for key, sequence in found:
        by_key[key].append(sequence)
    repeats, regressions = 0, []
    for key, sequences in by_key.items():
        for before, after in itertools.pairwise(sequences):
            repeats += after == before
            if after < before:
                regressions.append((key, before, after))
    return Result(
        committed=len(committed),
        lost=sorted(committed - arrived.keys()),
        phantoms=sorted(arrived.keys() - allowed),
        repeats=repeats,
        regressions=regressions,
    )
