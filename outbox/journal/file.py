"""A range of a journal as a binary file."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

from outbox.journal.reader import JournalReader


class JournalFile(io.RawIOBase):
    """Its position 0 is the `start` of the range. Bytes that are gone end the file with an error, because their place
    cannot be kept."""

    def __init__(self, reader_at: Callable[[int], JournalReader], start: int, end: int) -> None:
        self._reader_at, self._start, self._end = reader_at, start, max(start, end)
        self._at = start
        self._reader: JournalReader | None = None
        self._blocks: Iterator[memoryview] = iter(())
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at - self._start

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: self._start, io.SEEK_CUR: self._at, io.SEEK_END: self._end}[whence]
        if origin + offset < self._start:
            raise ValueError(f"position {origin + offset - self._start} is before the beginning")
        if origin + offset != self._at:
            self._at, self._reader, self._left = origin + offset, None, memoryview(b"")
        return self.tell()

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        if self._at >= self._end:
            return 0
        if self._reader is None:
            self._reader = self._reader_at(self._at)
            self._blocks = iter(self._reader)
        if not self._left:
            self._left = next(self._blocks, memoryview(b""))
            if self._reader.cursor.jumps:
                begin, end = self._reader.cursor.jumps[0]
                raise OSError(f"bytes {begin} to {end} of the journal are gone. Read from {end} on.")
        view = memoryview(buffer).cast("B")
        count = min(len(view), len(self._left))
        view[:count] = self._left[:count]
        self._left = self._left[count:]
        self._at += count
        return count
