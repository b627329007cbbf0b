"""Taking a lane over: fence older owners, read both sides, and settle the batch between them.

The order of the questions is what makes the answer right; see `core.verdict`, which gives it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from outbox.conf import Conf
from outbox.core import verdict
from outbox.core.ledger import Entry, LedgerEntryError
from outbox.core.verdict import AskElection, Closed, Facts, Idle, MoveOnly, NothingToDo, PurgeEntry, State, Stop
from outbox.edges import backends
from outbox.edges.ledger_topic import LedgerMissing
from outbox.edges.transactions import TransactionalProducer, initialised
from outbox.failpoints import failpoint
from outbox.harvest.exactly_once_database import Purges, settle_purge
from outbox.harvest.exactly_once_values import Purge
from outbox.harvest.ports import KafkaPort, Servers

logger = logging.getLogger("outbox.harvest")


@dataclass(frozen=True, slots=True)
class Owned:
    """The lane may send; `batch` is the last one committed and purged."""

    producer: TransactionalProducer
    batch: int
    identity: UUID
    state: State
    entry: Entry | None = None
    server: str = ""
    """Which has shown the state, see `backends.server_of`."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The last record of the ledger cannot be understood."""

    text: str


def unreadable_text(lane: int, error: LedgerEntryError) -> str:
    return (
        f"lane {lane} is stopped, nothing was sent or deleted: {error} What can be done about it tells "
        f"manage.py outbox_resolve --lane {lane}"
    )


class UnreadableMark(Exception):
    """The last record of lane 0, asked for the sake of another lane."""

    def __init__(self, reason: LedgerEntryError) -> None:
        self.reason = reason
        super().__init__(str(reason))


def newest_change(ledger: KafkaPort, identity: UUID, give_up_at: float, *, waits: bool = True) -> int:
    """The latest change of the lane count that the ledger knows of: each is marked in the partition of lane 0 before
    the lanes are opened. Raises `LedgerMissing`: a ledger that is not there knows nothing, also not of none."""
    try:
        return verdict.change_of(ledger.last_entry(0, give_up_at, waits=waits), identity)
    except LedgerEntryError as error:
        raise UnreadableMark(error) from error


def newest_change_of_any(
    ledger: KafkaPort, identity: UUID, give_up_at: float, conf: Conf, state: State, *, waits: bool = True
) -> int:
    """The same; a ledger that the brokers say is not there is made anew. Empty, it knows of no change."""
    try:
        return newest_change(ledger, identity, give_up_at, waits=waits)
    except LedgerMissing:
        ledger.prepare(state.lane_count, conf.audit_window_s)
        return newest_change(ledger, identity, give_up_at, waits=waits)


def close_forgotten(servers: Servers, purges: Purges, state: State, newest: int, may_go_on: Callable[[], bool]) -> None:
    """The row, as it was read, knows nothing of change `newest`: the lanes are closed until the owner of lane 0 has
    settled all of them."""
    logger.warning(
        "lanes_closed lanes=%d change=%d newest_change=%d: the database went back to before a change of the count",
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
        purges: Purges,
        *,
        settling: State | None = None,
    ) -> None:
        """`settling`: the change of the lane count, as the row told it, for which the lane is settled while closed."""
        self._conf, self._lane, self._settling = conf, lane, settling
        self._runtime, self._database, self._kafka = servers.runtime, servers.database, servers.kafka
        self._servers, self._purges = servers, purges
        self._server = ""
        self.request_bytes: int | None = None
        """From the next producer on no more bytes in one request, but for a record alone."""

    def run(self, timeout_s: float, may_go_on: Callable[[], bool]) -> Outcome:
        """To be called when the lane's own purges are done and its producer is dropped."""
        give_up_at = self._runtime.monotonic() + timeout_s
        transactional_id = self._kafka.transactional_id(self._lane)
        producer = initialised(self._make, transactional_id, give_up_at, may_go_on, self._runtime)
        if producer is None:
            return None
        try:
            outcome = self._examine(producer, give_up_at, may_go_on)
        except UnreadableMark as error:
            outcome = Unreadable(unreadable_text(0, error.reason))
        except LedgerEntryError as error:
            outcome = Unreadable(unreadable_text(self._lane, error))
        except BaseException:
            producer.drop()
            raise
        if not isinstance(outcome, Owned):
            producer.drop()
        return outcome

    def _look(self, connection: Any) -> Any:
        statements = self._database.statements
        self._server = backends.server_of(backends.of(connection))
        return (*statements.state(connection, self._conf.lanes), statements.purged(connection, self._lane))

    def _make(self) -> TransactionalProducer:
        return self._kafka.producer(self._lane, self.request_bytes)

    def _examine(self, producer: TransactionalProducer, give_up_at: float, may_go_on: Callable[[], bool]) -> Outcome:
        failpoint("after-init")
        facts = self._read_facts(give_up_at, may_go_on)
        if facts is None:
            return None
        judged = verdict.takeover(facts)
        if isinstance(judged, verdict.LookUpRows):
            judged = self._compare(facts, judged, may_go_on)
        if judged is None:
            return None
        if isinstance(judged, PurgeEntry | MoveOnly):
            failpoint("before-settle")
            stop = self._settle(judged, may_go_on)
            if stop is not None or not may_go_on():
                return stop
            return Owned(producer, judged.entry.batch, facts.database, facts.state, facts.entry, self._server)
        if isinstance(judged, NothingToDo):
            return Owned(producer, judged.batch, facts.database, facts.state, facts.entry, self._server)
        assert not isinstance(judged, verdict.LookUpRows)
        return judged

    def _read_facts(self, give_up_at: float, may_go_on: Callable[[], bool]) -> Facts | None:
        lane, database = self._lane, self._database
        first = self._purges.ask(self._look, may_go_on)
        if first is None:
            return None
        identity, state, purged = first
        settling = self._settling is not None
        if self._settling is not None and self._has_ended(state):
            return None
        if not settling and verdict.waits_for(lane, state) is not None:
            return Facts(lane, identity, state, purged, None, purged)
        # Each time: brokers may have made a deleted one anew, with a policy that forgets. Made anew it is empty, and
        # the verdict says so when the table knows better.
        self._kafka.prepare(state.lane_count, self._conf.audit_window_s)
        entry = self._kafka.last_entry(lane, give_up_at)
        newest = verdict.change_of(entry, identity)
        if lane and not settling:
            marked = newest_change_of_any(self._kafka, identity, give_up_at, self._conf, state)
            if newest > marked and verdict.forgets_change(state, newest):
                # One that was given up before it was marked: the owner of lane 0 cannot know.
                close_forgotten(self._servers, self._purges, state, newest, may_go_on)
            newest = max(newest, marked)
        again = self._purges.ask(lambda connection: database.statements.purged(connection, lane), may_go_on)
        if again is None:
            return None
        return Facts(lane, identity, state, purged, entry, again, settling=settling, newest_change=newest)

    def _has_ended(self, state: State) -> bool:
        """A change that somebody else has ended is not this one's to go on with."""
        change = self._settling
        assert change is not None
        return (state.resize_to, state.resize_no) != (change.resize_to, change.resize_no)

    def _compare(self, facts: Facts, judged: verdict.LookUpRows, may_go_on: Callable[[], bool]) -> Any:
        entry = judged.entry
        found = self._purges.ask(lambda connection: self._database.statements.look_up(connection, entry.ids), may_go_on)
        if found is None:
            return None
        rows = verdict.found_rows(entry, found.count, found.digest, found.newest)
        return verdict.takeover(replace(facts, rows=rows))

    def _settle(self, judged: PurgeEntry | MoveOnly, may_go_on: Callable[[], bool]) -> Stop | None:
        """Looks once more, beside the guard that the same statement's file gives: rows and file belong together."""
        purge = Purge(judged.entry, 0)
        stop: Stop | None = self._purges.ask(
            lambda connection: settle_purge(self._database.statements, connection, purge), may_go_on
        )
        return stop
