"""What a read_committed consumer, and the application, must never see. Checkers know rows, not the cores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.simulation.checkers import Violation

TOPIC = "orders"
DEAD, DISCARDED, EDITED = "made a dead letter", "discarded", "edited"


@dataclass(frozen=True, slots=True)
class Written:
    """One record of an application; its `uid` is its own for ever, ids may be drawn a second time."""

    uid: int
    key: str
    sequence: int
    id: int
    topic: str = TOPIC
    size: int = 0
    """Bytes of its value, at least."""


@dataclass
class Checkers:
    written: dict[int, Written] = field(default_factory=dict)
    withdrawn: set[int] = field(default_factory=set)
    """Truncated by the application, or lost with a server that was replaced by a lagging copy: nobody's promise."""
    vanished: set[int] = field(default_factory=set)
    """Committed, not yet on the disk, and lost in a crash of the server: it never was."""
    committed: set[int] = field(default_factory=set)
    left: dict[int, str] = field(default_factory=dict)
    """Not to be sent any more, and why."""
    delivered: dict[int, None] = field(default_factory=dict)
    _last: dict[str, int] = field(default_factory=dict)

    def inserted(self, records: Iterable[Written]) -> None:
        self.written.update((record.uid, record) for record in records)

    def crashed(self, uids: Iterable[int]) -> None:
        for uid in uids:
            if uid in self.committed and uid not in self.withdrawn:
                raise Violation(f"phantom: {self.written[uid]} was sent before it was on the disk, and is gone")
            self.vanished.add(uid)

    def purged(self, uid: int) -> None:
        if uid not in self.committed and uid not in self.withdrawn:
            raise Violation(f"lost: {self.written[uid]} was deleted and is not in Kafka")

    def decided(self, uids: Iterable[int]) -> None:
        """A transaction with these records is committed."""
        for uid in uids:
            if uid in self.left:
                raise Violation(f"{self.written[uid]} was {self.left[uid]}, and is in Kafka now")
            self.committed.add(uid)

    def leaves(self, uid: int, how: str) -> None:
        if uid in self.committed:
            raise Violation(f"{self.written[uid]} is in Kafka, and now {how}")
        self.left[uid] = how

    def edited(self, uid: int, record: Written) -> None:
        self.leaves(uid, EDITED)
        self.inserted([record])

    def visible(self, uid: int) -> None:
        """A read_committed consumer has read the record."""
        record = self.written.get(uid)
        if record is None or uid in self.vanished:
            raise Violation(f"phantom: record {uid} was never committed, or is lost: {record}")
        if uid in self.delivered:
            raise Violation(f"twice: {record}")
        self.delivered[uid] = None
        if record.key:
            last = self._last.get(record.key, -1)
            if record.sequence < last:
                raise Violation(f"key {record.key!r} went back from {last} to {record.sequence}: {record}")
            self._last[record.key] = record.sequence

    def finished(self, left: list[int]) -> None:
        exempt = self.withdrawn | self.vanished | self.left.keys()
        if left:
            raise Violation(f"the backlog did not drain: ids {left[:10]} ({len(left)}) are still in the table")
        lost = [record for uid, record in self.written.items() if uid not in self.delivered and uid not in exempt]
        if lost:
            raise Violation(f"lost: {lost[:10]} ({len(lost)}) are neither in the table nor on the topic")
