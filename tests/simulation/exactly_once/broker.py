"""The simulated brokers: transactional ids with epochs, logs with a last stable offset, frames that arrive late.

A transaction is open from its first record, and *prepared* once its end is decided. In each log a marker of that log
ends it; until then nothing behind it is stable there. `hasty` brokers initialise a producer while markers of the older
owner's transaction are still on their way. Kafka was never seen to be that bad; the wait for the last stable offset
guards against it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outbox.core.exactly_once.ledger import BEGINNING
from tests.simulation.checkers import Violation
from tests.simulation.exactly_once.checkers import Checkers
from tests.simulation.world import World

TRANSACTION_TIMEOUT_S = 2.5

OK, BUSY, FENCED, WRONG_STATE, GAP = "ok", "busy", "fenced", "wrong state", "gap"
REFUSED, NAMED, TOO_LARGE = "refused", "refused by name", "too large"


class Transaction:
    __slots__ = ("commits", "epoch", "is_prepared", "logs", "marked", "process")

    def __init__(self, epoch: int, process: Any) -> None:
        self.epoch, self.process = epoch, process
        self.logs: dict[Log, None] = {}
        self.marked: set[Log] = set()
        self.is_prepared = self.commits = False


class Log:
    """One partition."""

    def __init__(self, visible: Callable[[Any], None] | None = None) -> None:
        self.records: list[tuple[Transaction, Any]] = []
        self.stable = 0
        self._visible = visible

    @property
    def end(self) -> int:
        return len(self.records)

    def advance(self) -> None:
        while self.stable < self.end:
            transaction, payload = self.records[self.stable]
            if self not in transaction.marked:
                return
            self.stable += 1
            if transaction.commits and self._visible is not None:
                self._visible(payload)

    def last_committed(self, below: int) -> Any:
        """What a read_committed reader finds last below an offset, of all that is stable and says something."""
        for transaction, payload in reversed(self.records[: min(below, self.stable)]):
            if transaction.commits and payload[0] != BEGINNING:
                return payload
        return None


class TransactionalId:
    """What the coordinator knows of one producer."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._world = broker, broker.world
        self.epoch = 0
        self.transaction: Transaction | None = None
        self._ended_with: bool | None = None
        self._asked: Transaction | None = None
        self._sequences: dict[Log, int] = {}

    def initialise(self) -> tuple[str, int]:
        transaction = self.transaction
        if transaction is not None and not transaction.is_prepared:
            self.epoch += 1  # who opened it can no longer end it
            self._prepare(transaction, commits=False)
            return BUSY, 0
        if transaction is not None and not self._broker.hasty:
            return BUSY, 0
        self.epoch += 1
        self._broker.initialised += 1
        self.transaction, self._ended_with = None, None
        self._sequences.clear()
        return OK, self.epoch

    def produce(self, epoch: int, log: Log, sequence: int, payloads: list[Any], process: Any) -> str:
        if epoch != self.epoch:
            return FENCED
        expected = self._sequences.get(log, 0)
        if sequence != expected:
            return OK if sequence < expected else GAP
        transaction = self.transaction
        if transaction is None:
            transaction = self.transaction = Transaction(epoch, process)
            self._watch(transaction)
        elif transaction.is_prepared:
            return BUSY
        self._sequences[log] = sequence + 1
        transaction.logs[log] = None
        log.records += [(transaction, payload) for payload in payloads]
        return OK

    def asked(self, epoch: int) -> None:
        """Its owner wants it committed: the request may arrive at any time from now on."""
        self._asked = self.transaction if epoch == self.epoch else None

    def may_commit(self, process: Any, log: Log) -> bool:
        asked = self._asked
        is_open = asked is not None and asked is self.transaction and not asked.is_prepared
        return is_open and asked.process is process and log in asked.logs

    def end(self, epoch: int, *, commits: bool) -> str:
        """Whatever is open under this epoch: the frame does not say which transaction it means."""
        if epoch != self.epoch:
            return FENCED
        transaction = self.transaction
        if transaction is None:
            return OK if self._ended_with is commits else WRONG_STATE
        if transaction.is_prepared:
            return BUSY if transaction.commits is commits else WRONG_STATE
        self._prepare(transaction, commits=commits)
        return OK

    def _prepare(self, transaction: Transaction, *, commits: bool) -> None:
        transaction.is_prepared, transaction.commits = True, commits
        world = self._world
        if commits:
            self._broker.decided(transaction)
        for log in transaction.logs:
            slow = world.chance(self._broker.markers_slow)
            delay = world.random.uniform(0.05, 0.6) if slow else world.random.uniform(0.001, 0.004)
            world.after(delay, lambda log=log: self._mark(transaction, log))  # type: ignore[misc]

    def _mark(self, transaction: Transaction, log: Log) -> None:
        transaction.marked.add(log)
        log.advance()
        if len(transaction.marked) == len(transaction.logs) and self.transaction is transaction:
            self.transaction, self._ended_with = None, transaction.commits

    def _watch(self, transaction: Transaction) -> None:
        def expire() -> None:
            if self.transaction is transaction and not transaction.is_prepared:
                self.epoch += 1
                self._prepare(transaction, commits=False)

        self._world.after(TRANSACTION_TIMEOUT_S, expire)


class Broker:
    """The data log, which every lane writes to, and a ledger partition and a transactional id for each lane."""

    def __init__(self, world: World, checkers: Checkers) -> None:
        self.world = world
        self._checkers = checkers
        self.hasty = False
        self.waits_for_stable = True
        self.markers_slow = 0.0
        self.data = Log(lambda uid: checkers.visible(uid))
        self._ids: dict[int, TransactionalId] = {}
        self._ledgers: dict[int, Log] = {}
        self.partitions = 0
        """Of the ledger; 0: it is not there."""
        self.initialised = 0
        """Producers, in all."""

    def id_of(self, lane: int) -> TransactionalId:
        return self._ids.setdefault(lane, TransactionalId(self))

    def may_commit(self, process: Any) -> bool:
        """Whether a transaction of this process may be committed although it has stopped waiting for that."""
        return any(found.may_commit(process, self.data) for found in self._ids.values())

    def ledger(self, lane: int) -> Log:
        return self._ledgers.setdefault(lane, Log())

    def decided(self, transaction: Transaction) -> None:
        if self.data in transaction.logs and not transaction.process.holds_lease:
            raise Violation(f"{transaction.process.name} has committed after it gave back its lease on the table")
        uids = [uid for found, uid in self.data.records[self.data.stable :] if found is transaction]
        self.world.note("decided", transaction.process.name, uids)
        for uid in uids:
            self.world.postgres.primary.holds.require_sendable(self._checkers.written[uid])
        self._checkers.decided(uids)
