"""The connections of exactly-once delivery to its database, and the thread that purges.

Every connection is checked to reach the same database. A purge is repeated until it succeeds or the lanes have ended:
what was committed in Kafka is in the table until then, and the next batch waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import psycopg

from outbox.conf import Conf
from outbox.core.exactly_once import decisions, purging
from outbox.core.exactly_once.decisions import LookUpRows, MoveOnly, Purged, PurgeEntry, StateRow, Stop
from outbox.core.exactly_once.ledger import Entry
from outbox.core.exactly_once.purging import Flushed
from outbox.edges.postgres.common import backends, notifications, table
from outbox.edges.postgres.common.leases import TableLease
from outbox.edges.postgres.common.session import BoundedConnection, OwnedConnection, Session
from outbox.edges.postgres.exactly_once import companions
from outbox.edges.postgres.exactly_once.companions import AnotherDatabase, Companions
from outbox.edges.postgres.exactly_once.reader import Reader
from outbox.edges.postgres.exactly_once.sweeper import Sweeper
from outbox.edges.postgres.holds import HoldTable
from outbox.failpoints import failpoint
from outbox.harvest.exactly_once.ports import Servers, StatementsPort
from outbox.harvest.exactly_once.values import Awaited, BatchPurge, MayNotGoOn, Ticket
from outbox.harvest.lease_keeper import lease_of
from outbox.harvest.readings import Troubles
from outbox.runtime import Interrupt, Runtime
from outbox.runtime.threads import THREADS

logger = logging.getLogger("outbox.harvest")

_SETTLE_ATTEMPTS_MAX = 5
_ACTIONS_WAIT_MS = 300

Source = Callable[[], Any]
"""The parameters of a connection; called again for each, as credentials may change."""


class Database:
    """A `DatabasePort`: opens connections to the outbox of the settings. Thread-safe."""

    def __init__(self, conf: Conf, source: Source | None = None, runtime: Runtime = THREADS) -> None:
        self._conf = conf
        self._source = source or partial(table.parameters, conf.database)
        self._mutex = runtime.lock("database identity")
        self.identity: UUID | None = None
        self.state = StateRow(conf.election.lanes)
        self.sequence = ""
        self.companions: Companions | None = None
        self.owner = ""
        """Who opens the connections; by them the next owner of a lane sees whether this one is alive."""
        self.holds = HoldTable(conf.table, keep_empty_key=conf.harvest.keep_empty_key)

    def connect(self, name: str) -> BoundedConnection:
        """A checked connection. `opened_at` says since when it stands."""
        connection = companions.connect(
            self._source(),
            statement_timeout_s=self._conf.harvest.statement_timeout_s,
            application_name=f"outbox {name}",
        )
        connection.give_up_at = time.monotonic() + self._conf.harvest.statement_timeout_s
        try:
            self._check(connection)
            if self.owner:
                self.holds.show_alive(connection, self.owner)
        except BaseException:
            connection.close()
            raise
        connection.opened_at = time.monotonic()
        return connection

    def _check(self, connection: BoundedConnection) -> None:
        sequence = companions.sequence_of(connection, self._conf.table)
        found = Companions(self._conf.table, sequence)
        identity, state = found.state(connection, self._conf.election.lanes)
        with self._mutex:
            if self.identity is not None and identity != self.identity:
                raise AnotherDatabase(
                    f"This process began with database {self.identity} and is now connected to database {identity}. "
                    f"It sends and deletes nothing there. Check where the alias {self._conf.database!r} leads. If the "
                    "change is intended, restart the harvester."
                )
            self.identity, self.state, self.sequence, self.companions = identity, state, sequence, found

    @property
    def statements(self) -> Companions:
        assert self.companions is not None, "no connection has been opened yet"
        return self.companions

    def reader(self, lanes: int) -> Reader:
        return Reader(self._conf.table, self.sequence, lanes, keep_empty_key=self._conf.harvest.keep_empty_key)

    def sweeper(self, lanes: int) -> Sweeper:
        return Sweeper(self._conf.table, lanes, keep_empty_key=self._conf.harvest.keep_empty_key)

    def lease(self, owner: str) -> TableLease:
        return lease_of(self._conf, owner)

    def listen(self, connection: BoundedConnection) -> None:
        notifications.listen(connection, self._conf.table)

    def wait_notified(self, connection: BoundedConnection, interrupt: Interrupt) -> bool:
        return notifications.wait_notified(connection, interrupt)


class PurgeSession:
    """Purges, and the few statements of takeovers, one after the other on a connection of their own. They run in the
    order in which they were submitted; a purge that has failed is submitted again, behind the others."""

    def __init__(self, servers: Servers, settled: Callable[[Ticket], None], statement_timeout_s: float) -> None:
        runtime = self._runtime = servers.runtime
        self._database, self._settled, self._timeout_s = servers.database, settled, statement_timeout_s
        self._closing = runtime.event()
        self._troubles = Troubles(-1, runtime)
        self._session = Session("outbox-purge", partial(self._database.connect, "purge"), self._post, runtime)

    def submit(self, purges: Sequence[BatchPurge]) -> Ticket:
        """Tried until it succeeds, or is given up because the lanes have ended."""
        ticket = Ticket(purges, self._runtime)
        self._send(ticket, 0)
        return ticket

    def ask(self, job: Callable[[OwnedConnection], Any], may_go_on: Callable[[], bool] = lambda: True) -> Any:
        """The job's result, or its error. Raises `MayNotGoOn`. What was submitted before has been tried once."""
        answer: dict[str, Any] = {}
        awaited = Awaited(self._runtime)

        def run(connection: Any) -> None:
            answer["result"] = job(connection)

        self._session.submit(run, awaited, self._timeout_s)
        while not awaited.wait(0.05):
            if not may_go_on():
                raise MayNotGoOn("The lane ended, or lost the trust of the election, before PostgreSQL answered.")
            if self._closing.is_set() and self._session.join(0):
                raise psycopg.OperationalError("The harvester closed the connection because its lanes have ended.")
        if awaited.error is not None:
            raise awaited.error
        return answer["result"]

    def tell(self, job: Callable[[Any], None]) -> Awaited:
        """Run the job some time; `error` of the answer tells what came of it."""
        awaited = Awaited(self._runtime)
        self._session.submit(job, awaited, self._timeout_s)
        return awaited

    def reconnect(self) -> None:
        """What is submitted from now on runs on a new connection."""
        self._session.submit(lambda connection: None, Awaited(self._runtime), self._timeout_s, renew=True)

    def close(self) -> None:
        """Nothing that was submitted is waited for: what PostgreSQL is asked at this moment is given up. Does not
        block."""
        self._closing.set()
        self._session.close()
        self._session.interrupt()

    def join(self, timeout_s: float) -> bool:
        return self._session.join(timeout_s)

    # ---- in the session's thread

    def _send(self, ticket: Ticket, attempt: int) -> None:
        self._session.submit(partial(self._purge, ticket, attempt), (ticket, attempt), self._timeout_s)

    def _post(self, outcome: tuple[Any, Any, BaseException | None]) -> None:
        report, _, error = outcome
        if isinstance(report, Awaited) and not isinstance(report, Ticket):
            report.settle(error)
            return
        ticket, attempt = report
        if error is None:
            self._troubles.over("purge")
            self._settled(ticket)
            ticket.settle()
            failpoint("after-purge")
        elif self._closing.is_set():
            ticket.settle(error)
        else:
            self._troubles.seen("purge", str(error))
            self._closing.wait(purging.pause_s(attempt))
            self._send(ticket, attempt + 1)

    def _purge(self, ticket: Ticket, attempt: int, connection: Any) -> None:
        failpoint("before-purge")
        statements = self._database.statements
        server, opened_at = backends.server_of(backends.of(connection)), connection.opened_at
        known = purging.of_server(ticket.purges, server)
        moved: list[BatchPurge] = []
        if purging.is_plain(known) and self._is_deleted(statements, connection, known[0]):
            moved, known = known, []
        while known:
            done: list[BatchPurge] = []
            try:
                with connection.transaction():
                    moved = self._delete(statements, connection, known, done)
            except _RowsKept as error:
                ticket.stops[error.lane] = error.stop
                known = purging.without_lane(known, error.lane)
            else:
                ticket.done.extend(done)
                break
        if purging.proves_flush(attempt, moved):
            ticket.proves(Flushed(opened_at, server))
        for purge in purging.to_settle(ticket.purges, moved, ticket.stops):
            self._settle(statements, connection, purge, ticket)

    @staticmethod
    def _is_deleted(statements: StatementsPort, connection: Any, purge: BatchPurge) -> bool:
        entry = purge.entry
        deleted = statements.purge_plain(connection, entry.lane, entry.batch, entry.ids, purge.filenode)
        _warn_of_fewer(entry, deleted)
        return bool(deleted)

    def _delete(
        self, statements: StatementsPort, connection: Any, purges: Sequence[BatchPurge], done: list[BatchPurge]
    ) -> list[BatchPurge]:
        """Those that were moved; those of them whose hold actions are done are added to `done`."""
        moved = []
        for purge in purges:
            entry = purge.entry
            of_batch = entry.lane, entry.batch, entry.ids, purge.filenode
            if purge.hold_actions is None:
                deleted = statements.purge(connection, *of_batch)
                is_moved = bool(deleted)
            else:
                is_moved, deleted = statements.purge_counted(connection, *of_batch)
                if is_moved and self._run(connection, purge):
                    done.append(purge)
            _refuse_kept(statements, connection, entry, entry.ids, purge.filenode, deleted)
            if is_moved:
                moved.append(purge)
                _warn_of_fewer(entry, deleted)
        return moved

    def _run(self, connection: Any, purge: BatchPurge) -> bool:
        """Hold actions that cannot be done, or that would wait for another session's lock, must not prevent the purge
        of a batch."""
        assert purge.hold_actions is not None
        try:
            self._database.holds.run_soon(connection, purge.entry.lane, purge.hold_actions, _ACTIONS_WAIT_MS)
        except psycopg.Error as error:
            if connection.broken:
                raise
            logger.error("hold_actions_failed lane=%d reason=%r", purge.entry.lane, str(error))
            return False
        return True

    @staticmethod
    def _settle(statements: StatementsPort, connection: Any, purge: BatchPurge, ticket: Ticket) -> None:
        found = settle_purge(statements, connection, purge)
        if isinstance(found, Stop):
            ticket.stops[purge.entry.lane] = found


def _warn_of_fewer(entry: Entry, deleted: int) -> None:
    if 0 < deleted < entry.count:
        logger.warning(
            "purged_fewer lane=%d batch=%d sent=%d deleted=%d: something else deletes records",
            entry.lane, entry.batch, entry.count, deleted,
        )  # fmt: skip


def settle_purge(statements: StatementsPort, connection: Any, purge: BatchPurge) -> Stop | None:
    """A purge that moved nothing: already done, or the table's file has changed and the rows are compared first."""
    entry = purge.entry
    for _ in range(_SETTLE_ATTEMPTS_MAX):
        statements.require_backend(connection)  # which the purge asks for as well, and does nothing elsewhere
        purged = statements.purged(connection, entry.lane)
        step = purging.settle_step(entry, purged)
        filenode = 0
        if isinstance(step, LookUpRows):
            found = statements.look_up(connection, entry.ids)
            filenode = found.filenode
            rows = decisions.found_rows(entry, found.count, found.digest, found.newest)
            step = purging.settle_step(entry, purged, rows)
        if isinstance(step, Stop):
            return step
        if isinstance(step, Purged):
            return None
        assert isinstance(step, PurgeEntry | MoveOnly)
        ids = purging.ids_of(step)
        try:
            with connection.transaction():
                deleted = statements.purge(connection, entry.lane, entry.batch, ids, filenode, compared=True)
                _refuse_kept(statements, connection, entry, ids, filenode, deleted)
        except _RowsKept as error:
            return error.stop
    raise psycopg.OperationalError(f"The table's file changes faster than the harvester can purge batch {entry.batch}.")


class _RowsKept(Exception):
    """Rolls back the purge of a lane's batch, which has moved m and left rows."""

    def __init__(self, lane: int, stop: Stop) -> None:
        self.lane, self.stop = lane, stop
        super().__init__(stop.text)


def _refuse_kept(
    statements: StatementsPort, connection: Any, entry: Entry, ids: Sequence[int], filenode: int, deleted: int
) -> None:
    """Rows that were deleted by somebody else are gone. Those that are still there would be sent again."""
    if deleted < len(ids) and (count := statements.kept(connection, entry.lane, entry.batch, ids, filenode)):
        raise _RowsKept(entry.lane, decisions.rows_kept(entry, statements.why_kept(connection, count)))
