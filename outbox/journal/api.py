"""The functions of `outbox.journal`: journals, staged appends, and readers, on Django's connections.

Bytes are staged outside of the caller's transaction and committed in it. What is staged and not committed is removed by
the keeper.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import IO
from uuid import uuid4

from django.db import DatabaseError, connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from outbox.conf import current
from outbox.core.journal.fragments import is_name
from outbox.core.journal.health import StoreHealth
from outbox.core.journal.reading import ReadCursor
from outbox.core.journal.replication import suffices
from outbox.core.journal.values import (
    BLOCK_BYTES,
    FRAGMENT_BYTES,
    AppendRefusal,
    Cause,
    Conditions,
    JournalState,
    Replication,
    Staged,
    StoreFailed,
)
from outbox.edges.postgres.journal.table import JournalTable
from outbox.journal import commit
from outbox.journal.errors import JournalError, SuspectJournal, error_of, unknown
from outbox.journal.file import JournalFile
from outbox.journal.reader import JournalReader
from outbox.journal.staging import Staging
from outbox.journal.stores import stores, zones
from outbox.runtime.threads import THREADS

Content = bytes | bytearray | memoryview | IO[bytes] | Iterable[bytes]
POLLS_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def create(
    name: str,
    *,
    replicas: int = 1,
    stores: Sequence[str] | None = None,
    fragment_bytes: int = FRAGMENT_BYTES,
    retention_s: float | None = None,
    using: str | None = None,
) -> bool:
    """Create the journal; False: there is one of this name, which stays as it is.

    Each append is on `replicas` of the `stores` (default: all of `STORES`) before it can commit. Several replicas are
    in at least two zones. Fragments older than `retention_s` are removed; without it they stay.
    """
    known = zones()
    chosen = tuple(known if stores is None else stores)
    if not is_name(name):
        raise JournalError(
            f"{name!r:.250} is no name of a journal. Use letters, digits, '-', '_', '.' and '/', at most 200, and no "
            "part that begins with a dot."
        )
    if missing := sorted(set(chosen) - set(known)):
        raise JournalError(f"The stores {missing} of the journal {name!r} are not in STORES. Add them to the setting.")
    if replicas < 1 or not suffices(Replication(replicas, known), chosen):
        raise JournalError(
            f"The journal {name!r} asks for {replicas} replicas in {min(2, replicas)} zones, and its stores are "
            f"{ {store: known[store] for store in chosen} }. Add stores to STORES, or ask for fewer replicas."
        )
    if fragment_bytes < BLOCK_BYTES:
        raise JournalError(f"fragment_bytes={fragment_bytes} is below the limit. Set at least {BLOCK_BYTES:,}.")
    return _table(using).create(name, replicas, chosen, fragment_bytes, retention_s)


def change(
    name: str, *, read_only: bool | None = None, retention_s: float | None = None, using: str | None = None
) -> None:
    """Allow or refuse appends; set the retention, 0 to keep everything. None leaves a value as it is."""
    if not _table(using).change(name, read_only, retention_s):
        raise unknown(name)


def show(name: str, *, using: str | None = None) -> JournalState:
    """The head, the registers and the configuration of the journal."""
    state = _table(using).state(name)
    if state is None:
        raise unknown(name)
    return state


def journals(*, using: str | None = None) -> Sequence[JournalState]:
    return _table(using).journals()


# ---- appending


@dataclass(frozen=True)
class StagedAppend:
    """Bytes that are on the stores, and not in the journal yet. It can be pickled, and committed by another process."""

    staged: Staged
    alias: str

    @property
    def append(self) -> str:
        return self.staged.append

    @property
    def journal(self) -> str:
        return self.staged.journal

    @property
    def length(self) -> int:
        return self.staged.length

    def commit(
        self,
        *,
        check: Mapping[str, str | None] | None = None,
        set: Mapping[str, str] | None = None,
        drop: Sequence[str] = (),
        expect_offset: int | None = None,
    ) -> None:
        """Make the bytes a part of the journal, in the caller's transaction: they become visible with it, or never do.

        PostgreSQL checks the conditions at COMMIT, so COMMIT raises their errors: see `refusals`. To commit the same
        append once more does nothing, so you can repeat a transaction whose COMMIT is in doubt.
        """
        connection = connections[self.alias]
        if connection.get_autocommit():
            raise JournalError(
                "commit() was called outside a transaction. Wrap it and the change that it belongs to in "
                "transaction.atomic()."
            )
        conditions = _conditions(check, set, drop, expect_offset)
        try:
            commit.place(_on(connection), self.staged, conditions)
        except JournalError:
            transaction.set_rollback(True, using=self.alias)
            raise
        transaction.on_commit(partial(_write_index, self), using=self.alias, robust=True)

    def offsets(self) -> tuple[int, int] | None:
        """Where the append begins and ends in the journal. None: it is not committed."""
        placed = _table(self.alias).placed(self.append)
        return (placed[0].begin, placed[-1].end) if placed else None


def stage(
    name: str,
    content: Content,
    *,
    check: Mapping[str, str | None] | None = None,
    expect_offset: int | None = None,
    using: str | None = None,
) -> StagedAppend:
    """Write the content to the stores, and read it again there. Memory is bounded, whatever the size of the content.

    `content` is bytes, a binary file, or an iterable of bytes. If it raises, nothing is staged. Call it before the
    transaction: an upload within it would keep a snapshot and locks open. An append that `check` and `expect_offset`
    rule out already fails before the upload.
    """
    alias = _alias(using)
    with _outside(alias) as connection:
        staging = Staging(
            _on(connection),
            stores(),
            zones(),
            THREADS,
            lambda: str(uuid4()),
            _health(),
            stall_s=current().journal.journal_store_timeout_s,
        )
        staged = staging.stage(name, _chunks(content), _conditions(check, None, (), expect_offset))
    return StagedAppend(staged, alias)


def append(
    name: str,
    content: Content,
    *,
    check: Mapping[str, str | None] | None = None,
    set: Mapping[str, str] | None = None,
    drop: Sequence[str] = (),
    expect_offset: int | None = None,
    using: str | None = None,
) -> StagedAppend:
    """Stage and commit in one call: in the caller's transaction if there is one, else in its own."""
    staged = stage(name, content, check=check, expect_offset=expect_offset, using=using)
    with refusals(), transaction.atomic(using=staged.alias):
        staged.commit(check=check, set=set, drop=drop, expect_offset=expect_offset)
    return staged


@contextmanager
def refusals() -> Iterator[None]:
    """Put it around `transaction.atomic()`: what PostgreSQL refuses at COMMIT is raised as an error of journals."""
    try:
        yield
    except DatabaseError as error:
        sqlstate = getattr(error.__cause__, "sqlstate", None)
        if sqlstate not in {cause.value for cause in Cause}:
            raise
        text = error.__cause__.diag.message_primary  # type: ignore[union-attr]
        raise error_of(AppendRefusal(Cause(sqlstate), text)) from error


# ---- reading


def read(
    name: str,
    offset: int = 0,
    end: int | None = None,
    *,
    chain: bytes | None = None,
    follow: bool = False,
    using: str | None = None,
) -> JournalReader:
    """Iterate over the bytes from `offset` to `end`, or to the head; with `follow` wait there for more.

    Every block is checked before it is given out, and comes from another replica if one is bad. `reader.cursor` has the
    offset, the jumps over bytes that are gone, and the chained hash. Offset and hash together are a place to resume at:
    with both, a database that went back in time is noticed.
    """
    table = _table(using)
    if table.state(name) is None:
        raise unknown(name)
    return JournalReader(name, table, stores(), ReadCursor(offset, end, chain), _poll() if follow else None)


def open_file(name: str, start: int = 0, end: int | None = None, *, using: str | None = None) -> io.BufferedReader:
    """The bytes from `start` to `end`, or to the present head, as a binary file that can seek."""
    state = show(name, using=using)
    table, limit = _table(using), state.head if end is None else min(end, state.head)
    return io.BufferedReader(
        JournalFile(lambda offset: JournalReader(name, table, stores(), ReadCursor(offset, limit)), start, limit),
        BLOCK_BYTES,
    )


def _poll() -> Callable[[], bool]:
    """Pauses that grow until something was found."""
    count = 0

    def wait() -> bool:
        nonlocal count
        THREADS.sleep(POLLS_S[min(count, len(POLLS_S) - 1)])
        count += 1
        return True

    return wait


# ---- after a failover


def reset_head(name: str, offset: int, *, using: str | None = None) -> None:
    """End the suspicion of a journal: the next append begins at `offset`, and readers jump there.

    A journal is suspect when a store has more of it than the database. Take the end that `show()` names, or a higher
    one: offsets below it were used already.
    """
    alias = _alias(using)
    with transaction.atomic(using=alias):
        table = _table(using)
        state = table.lock(name)
        if state is None:
            raise unknown(name)
        if not state.suspect and offset != state.head:
            raise JournalError(
                f"The journal {name!r} is not suspect, and its head is {state.head}. Its head is only moved after the "
                "database went back in time: run manage.py journal --once first."
            )
        if offset < state.head or offset < (last := _last_end(state)):
            lowest = state.head if offset < state.head else last
            raise SuspectJournal(
                f"Offset {offset} of the journal {name!r} was used already: {state.suspect or 'its head is there.'} "
                f"Set the head to {lowest} or higher."
            )
        table.suspect(name, "")
        if offset > state.head:
            table.add_gap(name, offset - state.head)


def _last_end(state: JournalState) -> int:
    from outbox.journal.keeper import last_index

    known = stores()
    try:
        found = [last_index(known[store], state.name) for store in state.stores if store in known]
    except StoreFailed as error:
        raise JournalError(
            f"The stores of the journal {state.name!r} cannot be read ({error}), so nobody knows which offsets were "
            "used. Repair them, then set the head."
        ) from error
    return max((one[1] for one in found if one is not None), default=0)


# ----


def _conditions(
    check: Mapping[str, str | None] | None,
    set: Mapping[str, str] | None,
    drop: Sequence[str],
    expect_offset: int | None,
) -> Conditions:
    return Conditions(dict(check or {}), dict(set or {}), tuple(drop), expect_offset)


def _chunks(content: Content) -> Iterable[bytes | bytearray | memoryview]:
    if isinstance(content, bytes | bytearray | memoryview):
        return [content]
    if hasattr(content, "read"):
        return iter(partial(content.read, BLOCK_BYTES), b"")
    return content


def _alias(using: str | None) -> str:
    from outbox.models import OutboxRecord

    return using or router.db_for_write(OutboxRecord)


def _on(connection: BaseDatabaseWrapper) -> JournalTable:
    return JournalTable(connection, current().table)


def _table(using: str | None) -> JournalTable:
    return _on(connections[_alias(using)])


@contextmanager
def _outside(alias: str) -> Iterator[BaseDatabaseWrapper]:
    """A connection that is in no transaction: a stage is committed before the first byte is sent."""
    connection = connections[alias]
    if connection.get_autocommit() and not connection.in_atomic_block:
        yield connection
        return
    own = connection.copy()
    try:
        yield own
    finally:
        own.close()


@lru_cache(maxsize=1)
def _health() -> StoreHealth:
    """Of the stores, as this process has met them."""
    return StoreHealth()


def _write_index(append: StagedAppend) -> None:
    commit.write_index(_table(append.alias), stores(), append.staged)
