"""Which keys of a lane are held back because their head was refused, and how the culprit of a batch is found.

Pure, without a clock. A hold lives in memory: after a takeover by another process the record is simply refused again.
A record that was refused travels alone whenever it is tried again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from outbox.core.bisection import Bisection
from outbox.core.scoreboard_values import RecordHeld
from outbox.edges.reader import Row

Name = tuple[str, str] | int | str
"""(topic, key); the id of a record without key; a topic that does not exist."""

_BACKOFF_MIN_S, _BACKOFF_MAX_S = 0.5, 60.0


@dataclass(slots=True)
class _Hold:
    head: int
    lowest: int
    """Of the rows that were read and dropped: from here the reading goes on when the hold ends."""
    attempts: int
    retry_at: float


def name_of(row: Row) -> Name:
    return (row[1], row[2]) if row[2] else int(row[0])


class Holds:
    """The holds of one lane."""

    def __init__(self) -> None:
        self._held: dict[Name, _Hold] = {}
        self._tried: dict[Name, _Hold] = {}  # released for another attempt whose outcome is not known
        self._search = Bisection()

    def __len__(self) -> int:
        return len(self._held)

    def keep(self, rows: list[Row]) -> list[Row]:
        """Drop the rows under a hold."""
        if not self._held:
            return rows
        kept = []
        for row in rows:
            hold = self._held.get(name_of(row)) or self._held.get(row[1])
            if hold is None:
                kept.append(row)
            elif row[0] < hold.lowest:
                hold.lowest = row[0]
        return kept

    def cut(self, rows: list[Row]) -> list[Row]:
        """As many rows from the front as may share a transaction."""
        if self._search.is_searching:
            ids = [row[0] for row in rows]
            self._search = self._search.among(ids)
            rows = rows[: self._search.take(ids)]
        if self._tried:
            suspects = {hold.head for hold in self._tried.values()}
            for index, row in enumerate(rows):
                if row[0] in suspects:
                    return rows[: max(1, index)]
        return rows

    @property
    def is_narrow(self) -> bool:
        """Whether the culprit of a refused batch is being looked for."""
        return self._search.is_searching

    def refused_batch(self, ids: Collection[int]) -> None:
        """These rows of a batch were refused together, and which of them is at fault is not known."""
        self._search = self._search.refused(ids)

    def refused(self, row: Row, error: str, now: float, *, whole_topic: bool = False) -> RecordHeld:
        if row[0] in self._search.suspects:
            self._search = self._search.refused([row[0]])
        name: Name = row[1] if whole_topic else name_of(row)
        before = self._tried.pop(name, None) or self._held.get(name)
        attempts = before.attempts + 1 if before else 1
        retry_at = now + min(_BACKOFF_MAX_S, _BACKOFF_MIN_S * 2 ** min(attempts - 1, 10))
        self._held[name] = _Hold(row[0], row[0], attempts, retry_at)
        shown = (row[1], "*") if whole_topic else name
        assert not isinstance(shown, str)
        return RecordHeld(row[0], shown, attempts, retry_at, error)

    def delivered(self, rows: Iterable[Row]) -> None:
        """A batch was committed: its records are no suspects any more."""
        if self._search.is_searching or self._tried:
            ids = {row[0] for row in rows}
            self._search = self._search.cleared(ids)
            self._tried = {name: hold for name, hold in self._tried.items() if hold.head not in ids}

    def release_due(self, now: float) -> list[int]:
        """End the holds whose time has come; the ids from which to read again."""
        if not self._held:
            return []
        due = [name for name, hold in self._held.items() if hold.retry_at <= now]
        for name in due:
            self._tried[name] = self._held.pop(name)
        return [self._tried[name].lowest for name in due]
