"""The simulated brokers of a graph: input topics, output topics, the graph's own topics, and the group's offsets.

Transactional ids, transactions and logs are those of the exactly-once simulation. Offsets of the group are a log too:
what was sent in a transaction counts when its marker is there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from outbox.core.graphs import attempts
from tests.simulation.checkers import Violation
from tests.simulation.exactly_once.broker import Log, Transaction, TransactionalId

ATTEMPTS, POSITIONS = "graph.attempts", "graph.positions"


class SourceLog:
    """One partition of an input: entries are offset, key, number of the message. Marks of transactions leave gaps."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, bytes | None, int]] = []
        self.end = 0

    def append(self, key: bytes | None, uid: int, *, marks: int) -> int:
        offset = self.end
        self.entries.append((offset, key, uid))
        self.end += 1 + marks
        return offset

    def read(self, offset: int, count: int) -> list[tuple[int, bytes | None, int]]:
        return [entry for entry in self.entries if entry[0] >= offset][:count]


class GraphBroker:
    def __init__(self, world: Any, topics: tuple[str, ...], partitions: int) -> None:
        self.world, self.partitions = world, partitions
        self.hasty = False
        self.markers_slow = 0.0
        self.initialised = 0
        self.sources = {(topic, number): SourceLog() for topic in topics for number in range(partitions)}
        self.committed: dict[int, dict[str, int]] = {number: {} for number in range(partitions)}
        """The group's offsets, by lane."""
        self.visible: dict[str, int] = {}
        """How often a read_committed reader sees each output."""
        self.seen: list[tuple[int, str]] = []
        self._ids: dict[str, TransactionalId] = {}
        self._logs: dict[tuple[str, int], Log] = {}

    def id_of(self, name: str) -> TransactionalId:
        return self._ids.setdefault(name, TransactionalId(self))  # type: ignore[arg-type]

    def log(self, topic: str, number: int) -> Log:
        show: Callable[[Any], None] | None = None
        if topic == "offsets":
            show = partial(self._commit, number)
        elif topic not in (ATTEMPTS, POSITIONS):
            show = partial(self._show, number)
        return self._logs.setdefault((topic, number), Log(show))

    def decided(self, transaction: Transaction) -> None:
        self.world.note("decided", transaction.process.name)

    def append_plainly(self, topic: str, number: int, payloads: list[Any], process: Any) -> None:
        """Outside of a transaction: it is there at once."""
        log = self.log(topic, number)
        done = Transaction(0, process)
        done.logs[log], done.is_prepared, done.commits = None, True, True
        done.marked.add(log)
        log.records += [(done, payload) for payload in payloads]
        log.advance()

    def _commit(self, number: int, payload: Any) -> None:
        for topic, at in payload[1].items():
            before = self.committed[number].get(topic, 0)
            if at < before:
                raise Violation(f"the position of {topic}[{number}] went back from {before} to {at}")
            self.committed[number][topic] = at

    def _show(self, number: int, payload: Any) -> None:
        name = payload[1].decode()
        self.visible[name] = self.visible.get(name, 0) + 1
        self.seen.append((number, name))
        self.world.note("visible", name)
        self.world.check_visible(name)

    def is_stable(self, topic: str, number: int) -> bool:
        log = self.log(topic, number)
        return log.stable == log.end

    def last(self, topic: str, number: int, processor: str) -> bytes | None:
        found = [
            payload[1]
            for transaction, payload in self.log(topic, number).records
            if transaction.commits and attempts.processor_of(payload[1]) == processor
        ]
        return found[-1] if found else None
