"""Which rows of a lane are suspected, and how many of them may share a transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from outbox.core.faults import TOO_LARGE
from outbox.core.holds.bisection import Bisection
from outbox.core.rows import Row, size_of


class Suspects:
    """Of one lane: one at least of these records is at fault, and which one is found by sending fewer."""

    def __init__(self) -> None:
        self._search = Bisection()

    @property
    def is_searching(self) -> bool:
        return self._search.is_searching

    def begin(self, ids: Collection[int]) -> None:
        """An owner before this one died while it sent these records."""
        self._search = Bisection(frozenset(ids))

    def cut(self, rows: list[Row]) -> list[Row]:
        """As many rows from the front as the search wants."""
        if not self._search.is_searching:
            return rows
        ids = [row[0] for row in rows]
        if ids:  # else the page had nothing but held records, and says nothing about suspects behind them
            self._search = self._search.among([*ids, *(s for s in self._search.suspects if s > ids[-1])])
        return rows[: self._search.take(ids)]

    def refused_batch(self, ids: Collection[int], rows: Iterable[Row], code: str) -> None:
        self._search = self._search.refused(ids, _likely(rows, set(ids), code))

    def refused(self, id_: int) -> None:
        """Alone, or it is named."""
        if id_ in self._search.suspects:
            self._search = self._search.refused([id_])

    def cleared(self, ids: Collection[int]) -> None:
        self._search = self._search.cleared(ids)


def _likely(rows: Iterable[Row], ids: Collection[int], code: str) -> int | None:
    """Which of these records is to blame, as far as their sizes tell."""
    if code not in TOO_LARGE:
        return None
    largest = max((row for row in rows if row[0] in ids), key=size_of, default=None)
    return int(largest[0]) if largest is not None else None
