"""How much the next page holds, and how long to wait before it where there was nothing to read.

A page should hold so many bytes, not so many rows. While the brokers are too slow for pages of this size they are cut
to a quarter, at last to one record; each batch that is committed lets them grow by an eighth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outbox.core.rows import Row, size_of

IDLE_MIN_S = 0.001
_IDLE_GROWTH = 1.3
_IDLE_SHARE = 1.12  # of the longest pause: room for lease, state and holds beside the reads, within 20 queries a second
_FIRST_PAGE_ROWS = 500
_SMALLER, _LARGER = 4, 8
_BYTES_MIN = 1000
_SAMPLE = 16


def shares(rows: list[Row], lanes: Iterable[int], count: int) -> dict[int, list[Row]]:
    """The rows of a page by their lanes, of which there are so many in all."""
    if count == 1:
        return dict.fromkeys(lanes, rows)
    found: dict[int, list[Row]] = {lane: [] for lane in lanes}
    for row in rows:
        found[row[8]].append(row)
    return found


def bytes_of_a_record(rows: Sequence[Row]) -> int | None:
    """On the average of a page; None: it has none."""
    sample = rows[::_SAMPLE]
    return sum(size_of(row) for row in sample) // len(sample) + 1 if sample else None


class PageSizes:
    """Of the pages that one process reads."""

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self._rows_most, self._bytes_most = rows_max, bytes_max
        self._rows_max, self.bytes_max = rows_max, bytes_max  # less while the brokers are slow
        self.limit = min(_FIRST_PAGE_ROWS, rows_max)
        """Rows of the next page, for one lane."""
        self._cut_at = float("-inf")

    def adapt(self, record_bytes: int) -> None:
        """To the average size of a page's records."""
        target = max(1, min(self._rows_max, self.bytes_max // record_bytes))
        self.limit = target if target < self.limit else min(target, 4 * self.limit)

    def too_slow(self, asked_at: float, now: float) -> None:
        """A batch of the page that was asked for then was not acknowledged within its time."""
        if asked_at <= self._cut_at:
            return  # its page was cut already, for the sake of another lane
        self._rows_max = max(1, min(self._rows_max, self.limit) // _SMALLER)
        self.bytes_max = max(min(_BYTES_MIN, self.bytes_max), self.bytes_max // _SMALLER)
        self.limit, self._cut_at = self._rows_max, now

    def enlarge(self) -> None:
        """A batch was committed."""
        if self._rows_max < self._rows_most:
            self._rows_max = min(self._rows_most, self._rows_max + max(1, self._rows_max // _LARGER))
        if self.bytes_max < self._bytes_most:
            self.bytes_max = min(self._bytes_most, self.bytes_max + max(1, self.bytes_max // _LARGER))


class IdlePause:
    """Between reads that find nothing: each longer than the one before, until something is found or told."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = _IDLE_SHARE * longest_s
        self.pause_s = IDLE_MIN_S

    def made(self) -> None:
        self.pause_s = min(self.pause_s * _IDLE_GROWTH, self._longest_s)

    def ended(self) -> None:
        """There is something to read, or soon will be."""
        self.pause_s = IDLE_MIN_S
