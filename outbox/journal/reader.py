"""Reads a journal: asks for fragments, reads their blocks from the replicas, and gives out what is intact."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from outbox.core.journal.reading import ReadCursor
from outbox.core.journal.values import StoreFailed
from outbox.journal.errors import FragmentUnavailable, JournalDiverged
from outbox.journal.ports import StorePort, TablePort


class JournalReader:
    def __init__(
        self,
        journal: str,
        table: TablePort,
        stores: Mapping[str, StorePort],
        cursor: ReadCursor,
        wait: Callable[[], bool] | None = None,
    ) -> None:
        """`wait` follows: it returns when the journal may have grown, False to end. Without it the head is the end."""
        self._journal, self._table, self._stores = journal, table, stores
        self.cursor = cursor
        self._wait = wait
        self._asked_again = False

    def __iter__(self) -> Iterator[memoryview]:
        cursor = self.cursor
        while not cursor.is_done:
            if not cursor.needs:
                if (block := self._block()) is not None:
                    yield block
            elif not self._find() and (self._wait is None or not self._wait()):
                return

    def _find(self) -> bool:
        placed, head = self._table.at(self._journal, self.cursor.offset)
        error = self.cursor.missing(head) if placed is None else self.cursor.found(placed)
        if error is not None:
            raise JournalDiverged(
                f"The journal {self._journal!r} is not the one that was read before: {error}. The database went back "
                "in time. Read again from an offset that both have."
            )
        return placed is not None

    def _block(self) -> memoryview | None:
        """None: the fragment is asked for once more, because it may have been repaired or pruned meanwhile."""
        cursor, wanted = self.cursor, self.cursor.read
        for name in cursor.replicas:
            store = self._stores.get(name)
            try:
                if store is None:
                    raise StoreFailed("it is not in STORES")
                block = store.read(wanted.path, wanted.start, wanted.length)
            except StoreFailed as error:
                cursor.failed(name, str(error))
                continue
            if (found := cursor.given(name, block)) is not None:
                self._asked_again = False
                return found
        if self._asked_again:
            raise self._unavailable()
        self._asked_again = True
        cursor.ask_again()
        return None

    def _unavailable(self) -> FragmentUnavailable:
        placed = self.cursor.placed
        assert placed is not None
        errors = "; ".join(f"{store}: {error}" for store, error in sorted(self.cursor.errors.items()))
        return FragmentUnavailable(
            f"No store has bytes {self.cursor.offset} to {placed.end} of the journal {self._journal!r} as they were "
            f"written ({errors or 'no replica is left'}). Repair a store, or run: manage.py journal."
        )
