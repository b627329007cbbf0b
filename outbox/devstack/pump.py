"""The load generator behind ``manage.py outbox_pump``: transactions of records whose order can be checked.

Every record carries the headers ``Run`` (this run), ``Seq`` (its index among the committed records of its key, without
gaps) and, if its transaction is to be rolled back, ``Rolled-Back``. So a reader of the topics sees a loss as a gap, a
disorder as a step back and a phantom by name. Each key belongs to one writer, so that its order is defined. This module
has the plan, the writers and the numbers; the command prints them.
"""

import math
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from django.db import connections, router, transaction

from outbox.api import stash_many
from outbox.messages.message import Message

RECORDS_PER_TRANSACTION = 20
# Two neighbouring classes of transaction times differ by 5%.
_CLASS = math.log(1.05)


class _RolledBack(Exception):
    """Raised by a writer to undo its own transaction."""


@dataclass(frozen=True, kw_only=True)
class PumpPlan:
    """The plan of a run: how many records, keys and transactions to write."""

    keys: int
    records: int
    interval_s: float = 0.0
    topic: str = "pump"
    blank: bool = False
    value_size: int | None = None
    transactions_per_second: float | None = None
    rollback_share: float = 0.0
    writers: int = 1
    using: str | None = None
    seed: int | None = None

    def problems(self) -> Iterator[str]:
        """All faults of the plan, each with its remedy."""
        if self.keys < 1:
            yield f"--keys is {self.keys}. Set at least 1: every record needs a key."
        if self.records < 1:
            yield f"--records is {self.records}. Set how many records to commit, at least 1."
        if not 0 <= self.interval_s < 3600:
            yield f"--interval is {self.interval_s * 1000:g} ms. Set 0 to 3,600,000 ms."
        if self.value_size is not None and not 0 <= self.value_size <= 100_000_000:
            yield f"--value-size is {self.value_size}. Set 0 to 100,000,000 bytes."
        if self.value_size is not None and self.blank:
            yield "--value-size and --blank contradict each other: a blank record has no value. Remove one of them."
        if self.transactions_per_second is not None and not 0 < self.transactions_per_second < 1e6:
            yield f"--transactions-per-second is {self.transactions_per_second:g}. Set more than 0, or remove it."
        if not 0 <= self.rollback_share <= 0.99:
            yield f"--rollback-share is {self.rollback_share:g}. Set 0 to 0.99: some transactions must commit."
        if self.writers < 1:
            yield f"--writers is {self.writers}. Set at least 1."
        if self.writers > max(self.keys, 1):
            yield (
                f"--writers is {self.writers}, more than the {self.keys} keys. Set at most one writer per key: two "
                "writers of a key would leave its order undefined."
            )


@dataclass(frozen=True)
class Numbers:
    """The records and transactions that were written so far."""

    run: str
    committed: int
    rolled_back: int
    transactions: int
    seconds: float
    records_per_second: float
    transaction_ms_p50: float
    transaction_ms_p99: float
    transaction_ms_max: float
    complete: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class _Tally:
    """Counters of all writers, under one lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    reserved: int = 0  # records that some writer is about to commit
    committed: int = 0
    rolled_back: int = 0
    transactions: int = 0
    slots: int = 0
    times: Counter[int] = field(default_factory=Counter)
    slowest_s: float = 0.0

    def reserve(self, records: int) -> int:
        """The number of records in the next transaction, committed and rolled back."""
        with self.lock:
            count = min(RECORDS_PER_TRANSACTION, records - self.reserved)
            self.reserved += count
            return count

    def next_slot(self) -> int:
        with self.lock:
            self.slots += 1
            return self.slots - 1

    def finished(self, records: int, took_s: float, *, rolled_back: bool) -> None:
        with self.lock:
            self.transactions += 1
            self.times[round(math.log(max(took_s, 1e-6)) / _CLASS)] += 1
            self.slowest_s = max(self.slowest_s, took_s)
            if rolled_back:
                self.rolled_back += records
            else:
                self.committed += records

    def quantile_ms(self, share: float) -> float:
        rank, seen = share * sum(self.times.values()), 0
        for step in sorted(self.times):
            seen += self.times[step]
            if seen >= rank:
                return round(math.exp(step * _CLASS) * 1000, 3)
        return 0.0


class Pump:
    """Writes a plan with its threads; every writer has a connection of its own."""

    def __init__(self, plan: PumpPlan) -> None:
        from outbox.models import OutboxRecord

        self.plan = plan
        # Computed once: each transaction must be opened on the database of the records.
        self._using = plan.using or router.db_for_write(OutboxRecord)
        self.run = uuid.UUID(int=random.Random(plan.seed).getrandbits(128)).hex[:12]
        self._tally = _Tally()
        self._stopping = threading.Event()
        self._errors: list[BaseException] = []
        self._started = self._ended = 0.0
        self._threads = [
            threading.Thread(target=self._write, args=(number,), name=f"outbox-pump-{number}", daemon=True)
            for number in range(plan.writers)
        ]

    def start(self) -> None:
        self._started = time.monotonic()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let every writer end its transaction and return."""
        self._stopping.set()

    def wait(self, timeout_s: float) -> bool:
        """True when all writers have ended; the first error of a writer is raised then."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return False
        self._ended = self._ended or time.monotonic()
        if self._errors:
            raise self._errors[0]
        return True

    def numbers(self) -> Numbers:
        tally = self._tally
        with tally.lock:
            seconds = max((self._ended or time.monotonic()) - self._started, 1e-9)
            return Numbers(
                run=self.run,
                committed=tally.committed,
                rolled_back=tally.rolled_back,
                transactions=tally.transactions,
                seconds=round(seconds, 3),
                records_per_second=round(tally.committed / seconds, 1),
                transaction_ms_p50=tally.quantile_ms(0.5),
                transaction_ms_p99=tally.quantile_ms(0.99),
                transaction_ms_max=round(tally.slowest_s * 1000, 3),
                complete=tally.committed == self.plan.records,
            )

    def _write(self, number: int) -> None:
        writer = _Writer(self.plan, self.run, number)
        try:
            while count := self._claim():
                committed = False
                while not committed and self._paced(count):
                    committed = self._transact(writer, count)
        except BaseException as error:
            self._errors.append(error)
            self.stop()
        finally:
            connections.close_all()

    def _claim(self) -> int:
        """How many records the next committed transaction of a writer holds; 0 at the end."""
        count = self._tally.reserve(self.plan.records)
        return 0 if self._stopping.is_set() else count

    def _paced(self, count: int) -> bool:
        """Wait for this transaction's turn. False when it has none any more."""
        slot = self._tally.next_slot()
        wait_s = self.plan.interval_s * count if slot >= self.plan.writers else 0.0
        if rate := self.plan.transactions_per_second:
            # The schedule counts, not the last transaction: after a slow one the writer catches up.
            wait_s = max(wait_s, self._started + slot / rate - time.monotonic())
        return not self._stopping.wait(wait_s) if wait_s > 0 else not self._stopping.is_set()

    def _transact(self, writer: "_Writer", count: int) -> bool:
        """One transaction; True when it was committed."""
        rolls_back = writer.random.random() < self.plan.rollback_share
        messages = writer.messages(count, rolls_back)
        began = time.monotonic()
        try:
            with transaction.atomic(using=self._using):
                stash_many(messages, using=self._using)
                if rolls_back:
                    raise _RolledBack
        except _RolledBack:
            pass
        else:
            writer.committed(messages)
        self._tally.finished(count, time.monotonic() - began, rolled_back=rolls_back)
        return not rolls_back


class _Writer:
    """The keys of one thread: those whose index is its own modulo the writers."""

    def __init__(self, plan: PumpPlan, run: str, number: int) -> None:
        self.plan, self.run, self.number = plan, run, number
        self.random = random.Random(None if plan.seed is None else f"{plan.seed} {number}")
        self._own = range(number, plan.keys, plan.writers)
        self._next: Counter[str] = Counter()
        self._value = self._maker()

    def messages(self, count: int, rolls_back: bool) -> list[Message]:
        ahead: Counter[str] = Counter()
        result = []
        for _ in range(count):
            key = f"key-{self._own[self.random.randrange(len(self._own))]:x}"
            headers = [("Seq", str(self._next[key] + ahead[key])), ("Run", self.run)]
            if rolls_back:
                headers.append(("Rolled-Back", "1"))
            ahead[key] += 1
            result.append(Message(self.plan.topic, self._value(), key=key, headers=headers))
        return result

    def committed(self, messages: list[Message]) -> None:
        self._next.update(message.key for message in messages)

    def _maker(self) -> Callable[[], str | None]:
        size = self.plan.value_size
        if self.plan.blank:
            return lambda: None
        if size is None:
            return lambda: f"value-{self.random.getrandbits(64):x}"
        return lambda: f"value-{self.random.randbytes((size + 1) // 2).hex()}"[:size]
