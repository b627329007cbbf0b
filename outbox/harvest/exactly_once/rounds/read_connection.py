"""The connection on which a process reads the table, and what is known of it: reader, frontier, file.

Everything here belongs to the reading thread and needs no lock of its own. While it waits for PostgreSQL it calls
`meanwhile`, and before it reads a page `leave_out`; both take the lock of the round for a moment, which the reading
thread must therefore not hold when it calls anything here. A failure is returned, not raised. The reading thread
decides from it what to do next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import psycopg

from outbox.core import times
from outbox.core.exactly_once.flights import Plan
from outbox.core.exactly_once.reading import ReadPatience
from outbox.core.frontier import Frontier
from outbox.core.holds.values import HoldRow
from outbox.edges.postgres.common.session import OwnedConnection, StatementOverdue, close_quietly
from outbox.edges.postgres.exactly_once.reader import NOTHING, LeftOut, Page
from outbox.harvest.exactly_once.ports import ReaderPort, Servers
from outbox.harvest.lease_keeper import LeaseKeeper

_SAMPLE, _SAMPLE_S = 16, 1.0
_GRACE_S = 1.0  # the server gives up first, and then the connection can be kept


@dataclass(frozen=True, slots=True)
class Read:
    """A complete page."""

    plan: Plan
    page: Page
    looked_from: int
    """Above which id."""
    asked_at: float
    """When it was sent, on the monotonic clock."""
    returned_at: float
    created: Mapping[int, int]
    """When some of its records were stashed, by id; see `core.times`."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A read, or another statement on its connection; the frontier has noted nothing of it."""

    error: psycopg.Error
    pause_s: float
    """Before anything is asked again."""


class ReadConnection:
    def __init__(
        self,
        servers: Servers,
        lease: LeaseKeeper,
        statement_timeout_s: float,
        leave_out: Callable[[Plan, int], LeftOut],
        meanwhile: Callable[[], None],
    ) -> None:
        """`leave_out`: what a read above that id is to leave out as a whole. `meanwhile`: called again and again while
        PostgreSQL does not answer."""
        runtime = self._runtime = servers.runtime
        self._database, self._lease = servers.database, lease
        self._timeout_s, self._patience = statement_timeout_s, ReadPatience(statement_timeout_s, runtime.random)
        self._leave_out, self._meanwhile = leave_out, meanwhile
        self._interrupt = runtime.interrupt()
        self._connection: OwnedConnection | None = None
        self._reader: ReaderPort | None = None
        self._filenode: int | None = None  # of the last page
        self._sample_at = 0.0
        self.frontier = Frontier()

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def interrupt(self) -> None:
        """Called by any thread, and does not block: what is asked at this moment is given up, and all that follows."""
        self._interrupt.set()

    def drop(self) -> None:
        connection, self._connection = self._connection, None
        close_quietly(connection)

    def close(self) -> None:
        self.drop()
        self._interrupt.close()

    # ---- statements

    def read(self, plan: Plan, bytes_max: int) -> Read | Failed:
        asked_at = self._runtime.monotonic()
        try:
            connection = self._connected()
            looked_from = self.frontier.start()
            page = self._read_from(connection, plan, bytes_max)
        except psycopg.Error as error:
            # Refused by the server for want of time, the connection can be used, and what the frontier knows is true.
            return self._failed(error, keeps_connection=isinstance(error, psycopg.errors.QueryCanceled))
        self._patience.worked()
        self.frontier.accept(page.last_id, page.is_full, page.snapshot, page.sequence, passes_over=page.passes_over)
        return Read(plan, page, looked_from, asked_at, self._runtime.monotonic(), self._sample(page))

    def load_holds(self, lanes: int) -> Sequence[HoldRow] | Failed:
        try:
            connection = self._connected()
            connection.give_up_at = self._runtime.monotonic() + self._timeout_s
            return self._database.holds.load(connection, lanes)
        except psycopg.Error as error:
            return self._failed(error)

    def flush(self) -> Failed | None:
        """What was read: over another connection it would prove nothing."""
        try:
            connection = self._connection
            if connection is None:
                raise psycopg.OperationalError("The connection that read the page is closed.")
            connection.give_up_at = self._runtime.monotonic() + self._timeout_s
            self._database.statements.flush(connection)
        except psycopg.Error as error:
            return self._failed(error)
        return None

    def is_file_known(self, page: Page) -> bool:
        """After a TRUNCATE ids are drawn again from the first one, perhaps beyond where the last read ended: then only
        the file tells that there are others below."""
        before, self._filenode = self._filenode, page.filenode
        return before in (None, page.filenode)

    def _connected(self) -> OwnedConnection:
        if self._connection is None:
            connection = self._database.connect("read")
            try:
                if self._lease.is_kept:
                    self._lease.take(connection, {})  # who knows for how long there was no connection
            except BaseException:
                connection.close()
                raise
            connection.interrupt = self._interrupt
            connection.meanwhile, connection.meanwhile_s = self._meanwhile, self._lease.beat_s / 2
            self._connection = connection
            self.frontier = Frontier()  # perhaps another server, which draws its own transaction ids, and ids
        return self._connection

    def _read_from(self, connection: OwnedConnection, plan: Plan, bytes_max: int) -> Page:
        patience, statements = self._patience, self._database.statements
        reader, left_out = self._reader_for(plan.count), NOTHING
        try:
            if patience.is_stretched:
                connection.give_up_at = self._runtime.monotonic() + self._timeout_s
                statements.allow(connection, patience.timeout_s)
            look: int | None = self.frontier.start()
            while look is not None:
                connection.give_up_at = self._runtime.monotonic() + patience.timeout_s + _GRACE_S
                may_pass_over = patience.may_pass_over(self._runtime.monotonic())
                left_out = self._leave_out(plan, look) if may_pass_over else NOTHING
                page = reader.read(
                    connection, look, plan.lanes, plan.excluded_above(look), plan.limit, bytes_max, left_out
                )
                statements.require_backend(connection, page.backend)
                look = self.frontier.missed_from(look, page.snapshot, page.sequence)
            if patience.is_stretched:
                statements.allow(connection, None)
        except (psycopg.errors.QueryCanceled, StatementOverdue):
            patience.timed_out(self._runtime.monotonic(), passed_over=bool(left_out))
            raise
        patience.returned()
        return page

    def _reader_for(self, lanes: int) -> ReaderPort:
        reader, sequence = self._reader, self._database.sequence
        if reader is None or (reader.lanes, reader.sequence) != (lanes, sequence):
            reader = self._reader = self._database.reader(lanes)
        return reader

    def _failed(self, error: psycopg.Error, *, keeps_connection: bool = False) -> Failed:
        if not keeps_connection:
            self.drop()
        return Failed(error, self._patience.failed())

    def _sample(self, page: Page) -> dict[int, int]:
        """Once a second, when some of the page's records were stashed, as far as they have a time: to look at each
        would cost something."""
        now = self._runtime.monotonic()
        if not page.rows or now < self._sample_at:
            return {}
        self._sample_at = now + _SAMPLE_S
        rows = page.rows[:: max(1, len(page.rows) // _SAMPLE)]
        return {row[0]: row[7] for row in rows if times.is_finite(row[7])}
