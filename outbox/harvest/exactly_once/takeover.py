"""Taking a lane over: fence older owners, read both sides, and settle the batch between them.

`core.exactly_once.takeover` says what is asked next and what the answers mean. Here each question is one statement or
one call, in the thread of the lane: it waits for the answer, and for no longer than the lane may go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from outbox.conf import Conf
from outbox.core.exactly_once import decisions
from outbox.core.exactly_once.decisions import (
    AskElection,
    Closed,
    Idle,
    LookUpRows,
    MoveOnly,
    NothingToDo,
    PurgeEntry,
    StateRow,
    Stop,
)
from outbox.core.exactly_once.ledger import Entry, LedgerEntryError
from outbox.core.exactly_once.takeover import (
    Ask,
    CloseForgotten,
    GiveUp,
    Known,
    Last,
    Table,
    Unreadable,
    next_step,
    unreadable,
)
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerMissing
from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer, initialised
from outbox.edges.postgres.common import backends
from outbox.failpoints import failpoint
from outbox.harvest.exactly_once.ports import KafkaPort, Servers
from outbox.harvest.exactly_once.rounds.database import PurgeSession, settle_purge
from outbox.harvest.exactly_once.values import BatchPurge

logger = logging.getLogger("outbox.harvest")


@dataclass(frozen=True, slots=True)
class Owned:
    """The lane may send; `batch` is the last one committed and purged."""

    producer: TransactionalProducer
    batch: int
    identity: UUID
    state: StateRow
    entry: Entry | None = None
    server: str = ""
    """The server that has shown the state, see `backends.server_of`."""


class UnreadableMark(Exception):
    """The last record of lane 0, asked for the sake of another lane."""

    def __init__(self, reason: LedgerEntryError) -> None:
        self.reason = reason
        super().__init__(str(reason))


def newest_change(ledger: KafkaPort, identity: UUID, give_up_at: float, *, waits: bool = True) -> int:
    """The latest change of the lane count that the ledger knows of: each is marked in the partition of lane 0 before
    the lanes are opened. Raises `LedgerMissing`: a ledger that is not there knows nothing, also not of none."""
    try:
        return decisions.change_of(ledger.last_entry(0, give_up_at, waits=waits), identity)
    except LedgerEntryError as error:
        raise UnreadableMark(error) from error


def newest_change_of_any(
    ledger: KafkaPort, identity: UUID, give_up_at: float, conf: Conf, state: StateRow, *, waits: bool = True
) -> int:
    """The same; a ledger that the brokers say is not there is made anew. Empty, it knows of no change."""
    try:
        return newest_change(ledger, identity, give_up_at, waits=waits)
    except LedgerMissing:
        ledger.prepare(state.lane_count, conf.exactly_once.ledger_retention_s)
        return newest_change(ledger, identity, give_up_at, waits=waits)


def close_forgotten(
    servers: Servers, purges: PurgeSession, state: StateRow, newest: int, may_go_on: Callable[[], bool]
) -> None:
    """The row, as it was read, knows nothing of change `newest`: the lanes are closed until the owner of lane 0 has
    settled all of them."""
    logger.warning(
        "lanes_closed lanes=%d change=%d newest_change=%d: the database went back to before a change of the lane count",
        state.lane_count, state.resize_no, newest,
    )  # fmt: skip
    purges.ask(lambda c: servers.database.statements.close_all_lanes(c, state.resize_no, newest), may_go_on)


Outcome = Owned | AskElection | Closed | Idle | Stop | Unreadable | None
"""None: it may not go on."""


class Takeover:
    """Of one lane. Each attempt leaves nothing behind but what it has settled."""

    def __init__(
        self,
        conf: Conf,
        lane: int,
        servers: Servers,
        purges: PurgeSession,
        *,
        settling: StateRow | None = None,
    ) -> None:
        """`settling`: the change of the lane count, as the row told it, for which the lane is settled while closed."""
        self._conf, self._lane, self._settling = conf, lane, settling
        self._runtime, self._database, self._kafka = servers.runtime, servers.database, servers.kafka
        self._servers, self._purges = servers, purges
        self._server = ""
        self.request_bytes: int | None = None

    def send_less(self, request_bytes: int) -> None:
        """From the next producer on no more bytes in one request, but for a record alone."""
        self.request_bytes = request_bytes

    def run(self, timeout_s: float, may_go_on: Callable[[], bool]) -> Outcome:
        """To be called when the lane's own purges are done and its producer is dropped. Raises `MayNotGoOn`, as all
        that asks the table does."""
        give_up_at = self._runtime.monotonic() + timeout_s
        transactional_id = self._kafka.transactional_id(self._lane)
        producer = initialised(self._make, transactional_id, give_up_at, may_go_on, self._runtime)
        if producer is None:
            return None
        try:
            outcome = self._examine(producer, give_up_at, may_go_on)
        except UnreadableMark as error:
            outcome = unreadable(0, error.reason)
        except LedgerEntryError as error:
            outcome = unreadable(self._lane, error)
        except BaseException:
            producer.drop()
            raise
        if not isinstance(outcome, Owned):
            producer.drop()
        return outcome

    def _look(self, connection: Any) -> Table:
        statements = self._database.statements
        self._server = backends.server_of(backends.of(connection))
        return Table(
            *statements.state(connection, self._conf.election.lanes), statements.purged(connection, self._lane)
        )

    def _make(self) -> TransactionalProducer:
        return self._kafka.producer(self._lane, self.request_bytes)

    def _examine(self, producer: TransactionalProducer, give_up_at: float, may_go_on: Callable[[], bool]) -> Outcome:
        failpoint("after-init")
        known = Known(self._lane, self._settling)
        while True:
            match step := next_step(known):
                case PurgeEntry(entry) | MoveOnly(entry):
                    failpoint("before-settle")
                    if (stop := self._settle(step, may_go_on)) is not None:
                        return stop
                    return self._owned(producer, known, entry.batch)
                case NothingToDo(batch):
                    return self._owned(producer, known, batch)
                case Ask() | CloseForgotten() | LookUpRows():
                    known = self._asked(known, step, give_up_at, may_go_on)
                case GiveUp():
                    return None
                case _:
                    return step

    def _owned(self, producer: TransactionalProducer, known: Known, batch: int) -> Owned:
        assert known.table is not None
        assert known.last is not None
        return Owned(producer, batch, known.table.identity, known.table.state, known.last.entry, self._server)

    def _asked(
        self,
        known: Known,
        step: Ask | CloseForgotten | LookUpRows,
        give_up_at: float,
        may_go_on: Callable[[], bool],
    ) -> Known:
        """With the answer."""
        ask, database, table = self._purges.ask, self._database, known.table
        if step is Ask.TABLE:
            return replace(known, table=ask(self._look, may_go_on))
        if step is Ask.PURGED:
            again = ask(lambda connection: database.statements.purged(connection, self._lane), may_go_on)
            return replace(known, purged_again=again)
        if isinstance(step, LookUpRows):
            entry = step.entry
            found = ask(lambda connection: database.statements.look_up(connection, entry.ids), may_go_on)
            return replace(known, rows=decisions.found_rows(entry, found.count, found.digest, found.newest))
        assert table is not None
        state, identity = table.state, table.identity
        if step is Ask.LEDGER:
            # Each time: brokers may have made a deleted one anew, with a policy that forgets. Made anew it is empty,
            # and the decision says so when the table knows better.
            self._kafka.prepare(state.lane_count, self._conf.exactly_once.ledger_retention_s)
            return replace(known, last=Last(self._kafka.last_entry(self._lane, give_up_at)))
        if isinstance(step, CloseForgotten):
            close_forgotten(self._servers, self._purges, state, step.change, may_go_on)
            return replace(known, closed_for=step.change)
        return replace(known, marked=newest_change_of_any(self._kafka, identity, give_up_at, self._conf, state))

    def _settle(self, judged: PurgeEntry | MoveOnly, may_go_on: Callable[[], bool]) -> Stop | None:
        """Looks the rows up again and purges them only if the table still has the file in which they were found."""
        purge = BatchPurge(judged.entry, 0)
        stop: Stop | None = self._purges.ask(
            lambda connection: settle_purge(self._database.statements, connection, purge), may_go_on
        )
        return stop
