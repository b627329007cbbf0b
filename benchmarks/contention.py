"""Rows about `stash(ordered=True)` when writers want the same key: the cost for them, and for others.

Writers are threads with connections of their own, which run the statement of `stash()`. Each transaction stays open for
a while after its stash, like one that does other work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.drains import Drains
from benchmarks.servers import Database
from outbox.messages.inserts import InsertStatements

WRITERS, OTHERS = 6, 2
HOLD_S = 0.005
SECONDS = 4.0


@dataclass
class Counted:
    seconds: float
    transactions: int = 0
    statement_s: list[float] = field(default_factory=list)


def rows(drains: Drains, counts: Sequence[int] = (1, 1_000), seconds: float = SECONDS) -> None:
    database = drains.database
    free = _run(database, seconds, keys=1, ordered=False)
    for keys in counts:
        held = _run(database, seconds, keys=keys, ordered=True)
        name = f"ordered stash, {WRITERS} writers on {keys:,} key{'s' * (keys > 1)}"
        _show(drains, name, held[0], free[0], f"a transaction lasts {HOLD_S * 1000:g} ms and more")
        _show(
            drains,
            f"  other keys at the same time ({OTHERS} writers)",
            held[1],
            free[1],
            "their neighbours ordered or not",
        )
    drains.database.empty()


def _show(drains: Drains, name: str, found: Counted, free: Counted, note: str) -> None:
    row = drains.table.row(name, "transactions/s")
    median_ms = sorted(found.statement_s)[len(found.statement_s) // 2] * 1000
    share = found.transactions / max(1, free.transactions)
    row.add(found.transactions / found.seconds, f"{share:.2f} of unordered; stash {median_ms:.2f} ms; {note}")


def _run(database: Database, seconds: float, *, keys: int, ordered: bool) -> tuple[Counted, Counted]:
    """The writers that compete, and those of other keys, which are ordered as well."""
    stop, mutex = threading.Event(), threading.Lock()
    counted = Counted(seconds), Counted(seconds)
    threads = [
        threading.Thread(
            target=_write,
            args=(database, stop, mutex, counted[kind], number, 0 if kind else keys, ordered or bool(kind)),
        )
        for kind, count in enumerate((WRITERS, OTHERS))
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return counted


def _write(
    database: Database,
    stop: threading.Event,
    mutex: threading.Lock,
    counted: Counted,
    number: int,
    keys: int,
    ordered: bool,
) -> None:
    statements = InsertStatements("outbox")
    statement = (statements.insert_ordered if ordered else statements.insert).encode()
    with database.connect() as connection:
        turn = number
        while not stop.is_set():
            turn += WRITERS
            key = f"key-{turn % keys}" if keys else f"other-{number}"
            before = ("ordered", key) if ordered else ()
            begun = time.monotonic()
            with connection.transaction():
                connection.execute(statement, (*before, "ordered", key, "x", None, "{}", "{}"), prepare=True).fetchone()
                took = time.monotonic() - begun
                time.sleep(HOLD_S)
            with mutex:
                counted.transactions += 1
                counted.statement_s.append(took)
