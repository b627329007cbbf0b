"""Where a reader is in a journal, and what it does with what it finds. Pure.

A reader asks for the fragment at its offset, reads one block of one replica, checks it, and goes on behind it. It never
passes over bytes in silence: where retention or an operator has left nothing, it jumps and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from outbox.core.journal.chain import chained
from outbox.core.journal.fragments import is_intact
from outbox.core.journal.values import BLOCK_BYTES, Placed

EMPTY = sha256().digest()
"""Of the content of a gap."""


@dataclass(frozen=True, slots=True)
class BlockRead:
    """One block of a fragment, and which of its bytes are wanted."""

    path: str
    number: int
    start: int
    length: int
    """Of the block, in the object."""
    skip: int
    take: int


class ReadCursor:
    def __init__(self, offset: int, end: int | None = None, chain: bytes | None = None) -> None:
        """Reads from `offset` to `end`, or without an end. `chain` is what a reader had at this offset, if one had."""
        self.offset, self.end = offset, end
        self.chain = chain
        """The chained hash before the fragment at `offset`; None: not known. Both together are a place to resume at."""
        self.jumps: list[tuple[int, int]] = []
        self._placed: Placed | None = None
        self._bad: dict[str, str] = {}

    @property
    def is_done(self) -> bool:
        return self.end is not None and self.offset >= self.end

    @property
    def needs(self) -> bool:
        """The fragment at the offset has to be asked for."""
        return self._placed is None and not self.is_done

    def found(self, placed: Placed) -> str | None:
        """The fragment at the offset, or the first one behind it. Returns why the journal is not the one that was
        read before."""
        assert placed.end > self.offset
        if placed.begin > self.offset:
            self.chain = None
            self._jump(placed.begin)
            if self.is_done:
                return None
        content = EMPTY if placed.is_gap else placed.fragment.sha256
        if self.chain is not None and chained(self.chain, placed.begin, placed.end, content) != placed.chain:
            return f"the fragment from {placed.begin} to {placed.end} does not follow what was read before"
        self._bad = {}
        if placed.is_gap:
            self.chain = placed.chain
            self._jump(placed.end)
        else:
            self._placed = placed
        return None

    def missing(self, head: int) -> str | None:
        """There is nothing at the offset and behind it. Returns the same as `found`."""
        return f"its head is {head}, and {self.offset} was read before" if head < self.offset else None

    def _jump(self, to: int) -> None:
        to = to if self.end is None else min(to, self.end)
        self.jumps.append((self.offset, to))
        self.offset = to

    @property
    def read(self) -> BlockRead:
        """What to read next."""
        assert self._placed is not None
        placed = self._placed
        within = self.offset - placed.begin
        number = within // BLOCK_BYTES
        start = number * BLOCK_BYTES
        length = min(BLOCK_BYTES, placed.fragment.length - start)
        skip = within - start
        take = length - skip if self.end is None else min(length - skip, self.end - self.offset)
        return BlockRead(placed.fragment.path, number, start, length, skip, take)

    @property
    def replicas(self) -> Sequence[str]:
        """Stores to be asked, those that failed left out."""
        assert self._placed is not None
        return [store for store in self._placed.fragment.replicas if store not in self._bad]

    @property
    def placed(self) -> Placed | None:
        return self._placed

    @property
    def errors(self) -> dict[str, str]:
        """Of the replicas of this fragment."""
        return self._bad

    def ask_again(self) -> None:
        """For the fragment: it may have been repaired or removed since."""
        self._placed = None

    def failed(self, store: str, error: str) -> None:
        self._bad[store] = error

    def given(self, store: str, block: bytes) -> memoryview | None:
        """The wanted bytes, when the store gave the block as it was sent; else None, and another store is next."""
        assert self._placed is not None
        wanted = self.read
        if len(block) != wanted.length or not is_intact(self._placed.fragment.blocks, wanted.number, block):
            self.failed(store, f"block {wanted.number} of {wanted.path} has other bytes than were sent")
            return None
        self.offset += wanted.take
        if self.offset >= self._placed.end:
            self.chain, self._placed = self._placed.chain, None
        return memoryview(block)[wanted.skip : wanted.skip + wanted.take]
