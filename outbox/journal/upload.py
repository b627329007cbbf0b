"""Sends the blocks of one append to its stores, a thread for each, and has each read again what it wrote.

The caller's thread cuts and hashes; a store that is slow holds it up, one that stalls leaves the append. Memory is
bounded: the stores share the blocks that wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from outbox.core.journal.append import Append
from outbox.core.journal.fragments import digest
from outbox.core.journal.values import BLOCK_BYTES, AppendRefusal, Report, Staged, StoreFailed
from outbox.failpoints import failpoint
from outbox.journal.ports import StorePort, WriterPort
from outbox.runtime import Runtime

QUEUE_BLOCKS = 8
STALL_S = 30.0
"""A store that does not return from one call for so long leaves the append."""
_SEAL = None


class StoreThread:
    """One store of one upload. What it shares is guarded by the lock of the upload."""

    def __init__(self, name: str, store: StorePort) -> None:
        self.name, self._store = name, store
        self._waiting: deque[str | bytes | None] = deque()
        """A path begins an object, bytes are a block of it, None seals it."""
        self._since: float | None = None
        self._is_over = False
        self._report: Report | None = None
        self._error = ""
        self._writer: WriterPort | None = None
        self._length = 0

    # ---- under the lock

    def give(self, *items: str | bytes | None) -> None:
        if not self._is_over:
            self._waiting.extend(items)

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < QUEUE_BLOCKS

    @property
    def error(self) -> str:
        return self._error

    def taken_report(self) -> Report | None:
        found, self._report = self._report, None
        return found

    def stalls_at(self, stall_s: float) -> float | None:
        return None if self._since is None else self._since + stall_s

    def end(self) -> None:
        """The store gets nothing more. A call under way returns when it does."""
        self._is_over = True
        self._waiting.clear()

    @property
    def is_awake(self) -> bool:
        return bool(self._waiting) or self._is_over

    def take(self, now: float) -> bool:
        """Whether there is something to do."""
        if self._is_over:
            return False
        self._since = now
        self._item = self._waiting.popleft()
        return True

    def progressed(self, now: float) -> bool:
        """One call of several has returned. Whether to go on."""
        self._since = now
        return not self._is_over

    def done(self, report: Report | None, error: str) -> None:
        self._since = None
        if error:
            self._error = error
            self.end()
        else:
            self._report = report or self._report

    # ---- in its thread

    def act(self, progress: Callable[[], bool]) -> Report | None:
        """`progress` is called between calls of the store, and returns whether to go on."""
        item = self._item
        if isinstance(item, str):
            self._writer, self._length = self._store.create(item), 0
            return None
        assert self._writer is not None
        if item is _SEAL:
            return self._seal(self._writer, progress)
        self._writer.write(item)
        self._length += len(item)
        return None

    def _seal(self, writer: WriterPort, progress: Callable[[], bool]) -> Report | None:
        writer.finish()
        length, blocks = 0, bytearray()
        while length <= self._length and progress():
            block = writer.read(length, BLOCK_BYTES)  # one read beyond the end finds what is too much
            if not block:
                break
            blocks += digest(block)
            length += len(block)
        if not progress():
            return None
        writer.seal()
        self._writer = None
        return Report(length, bytes(blocks))

    def abort(self) -> None:
        if self._writer is not None:
            with suppress(StoreFailed):
                self._writer.abort()


class Upload:
    def __init__(
        self, append: Append, stores: Mapping[str, StorePort], runtime: Runtime, *, stall_s: float = STALL_S
    ) -> None:
        self._append, self._runtime, self._stall_s = append, runtime, stall_s
        self._changed = runtime.condition("upload")
        self._stores = {name: StoreThread(name, stores[name]) for name in append.writing}
        for store in self._stores.values():
            runtime.thread(lambda store=store: self._run(store), f"outbox-store-{store.name}").start()  # type: ignore[misc]

    def send(self, blocks: Iterator[bytes], extend: Callable[[], bool]) -> Staged | AppendRefusal:
        """Until every fragment is on enough stores. Whatever is raised, by the content too, leaves nothing staged."""
        try:
            return self._send(blocks, extend)
        finally:
            self._append.fail()
            with self._changed:
                for store in self._stores.values():
                    store.end()
                self._changed.notify_all()

    def _send(self, blocks: Iterator[bytes], extend: Callable[[], bool]) -> Staged | AppendRefusal:
        block = next(blocks, None)
        if block is None:
            return self._append.empty()
        while True:
            self._give(self._append.path)
            while block is not None and not self._append.is_full:
                self._append.add(block)
                self._give(block)
                if refusal := self._wait(lambda: all(store.has_room for store in self._live)):
                    return refusal
                block = next(blocks, None)
            self._append.seals()
            failpoint("append-sealing")
            self._give(_SEAL)
            if refusal := self._wait(lambda: not self._append.awaited):
                return refusal
            if refusal := self._append.kept(is_last=block is None):
                return refusal
            failpoint("append-sealed")
            is_open = extend()
            if block is None or not is_open:
                break
        return self._append.staged(is_open=is_open)

    @property
    def _live(self) -> list[StoreThread]:
        return [self._stores[name] for name in self._append.writing]

    def _give(self, item: str | bytes | None) -> None:
        with self._changed:
            for store in self._live:
                store.give(item)
            self._changed.notify_all()

    def _wait(self, is_done: Callable[[], bool]) -> AppendRefusal | None:
        """Until it is done, dropping stores that fail or stall."""
        with self._changed:
            while True:
                now, next_at = self._runtime.monotonic(), None
                for store in self._live:
                    if refusal := self._look(store, now):
                        return refusal
                    if (at := store.stalls_at(self._stall_s)) is not None:
                        next_at = at if next_at is None else min(next_at, at)
                if is_done():
                    return None
                self._changed.wait(None if next_at is None else max(0.0, next_at - now))

    def _look(self, store: StoreThread, now: float) -> AppendRefusal | None:
        at = store.stalls_at(self._stall_s)
        if (report := store.taken_report()) is not None:
            refusal = self._append.sealed(store.name, report)
        elif store.error:
            refusal = self._append.drop(store.name, store.error)
        elif at is not None and at <= now:
            refusal = self._append.drop(store.name, f"it has not answered for {self._stall_s:g} s")
        else:
            return None
        if store.name in self._append.dropped:
            store.end()
            self._changed.notify_all()
        return refusal

    # ---- the thread of a store

    def _run(self, store: StoreThread) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: store.is_awake)
                if not store.take(self._runtime.monotonic()):
                    break
                self._changed.notify_all()
            report, error = None, ""
            try:
                report = store.act(lambda: self._goes_on(store))
            except StoreFailed as failure:
                error = str(failure) or type(failure).__name__
            with self._changed:
                store.done(report, error)
                self._changed.notify_all()
        store.abort()

    def _goes_on(self, store: StoreThread) -> bool:
        """The store has returned from a call."""
        with self._changed:
            return store.progressed(self._runtime.monotonic())
