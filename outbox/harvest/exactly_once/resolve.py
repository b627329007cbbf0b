"""Carrying out an operator's decision about a lane that has stopped because table and ledger contradict each other.

Looking changes nothing and fences nobody. Acting fences first: an owner that still believes in its lane can commit
nothing any more, reads both sides again and goes on by what it finds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

from outbox.conf import Conf
from outbox.core.exactly_once import decisions, ledger, resolution
from outbox.core.exactly_once.decisions import Facts, StateRow, Why
from outbox.core.exactly_once.ledger import Entry, LedgerEntryError, UnknownEntryVersion
from outbox.core.exactly_once.resolution import (
    UNREADABLE,
    Case,
    Listed,
    Resolution,
    ResolutionOutcome,
    entries_after,
    is_sent_as_a_whole,
    objection,
)
from outbox.edges.kafka.exactly_once.ledger_history import LedgerHistory
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerMissing, Record
from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer, initialised, properties_of
from outbox.edges.postgres.preflight import keepers
from outbox.exceptions import OutboxError
from outbox.failpoints import failpoint
from outbox.harvest.exactly_once.rounds.database import Database, Source

logger = logging.getLogger("outbox.harvest")

_ALL_S = 600.0  # a week of entries may have to be read
_INIT_S = 30.0
_ATTEMPTS_MAX = 5
_AGAIN_S = 0.2


class NotResolved(OutboxError):
    """The decision does not fit, or something changed meanwhile. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class _Sides:
    identity: UUID
    state: StateRow
    purged: int


class Resolver:
    """Of one table. To be closed."""

    def __init__(self, conf: Conf, source: Source | None = None) -> None:
        self._conf = conf
        self._database = Database(conf, source)
        self._connection = self._database.connect("resolve")
        self._history = LedgerHistory(lambda: conf.kafka.client_properties, f"{conf.name}.ledger")

    def close(self) -> None:
        self._history.close()
        self._connection.close()

    def __enter__(self) -> Resolver:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # ---- looking

    def examine(self, lane: int) -> Case:
        """Both sides as they are now."""
        before = self._sides(lane)
        self._refuse_unknown(lane, before.state)
        entry, problem = resolution.last_proper(self._known_versions(lane), lane, before.identity)
        if problem is not None:
            text = f"Lane {lane} is stopped. {problem}"
            case = Case(lane, before.identity, before.purged, entry, UNREADABLE, text)
        else:
            case = self._judged(lane, before, entry)
        return replace(case, listed=tuple(self._listed(case))) if case.reason is not None else case

    def _ask(self, question: Any) -> Any:
        self._connection.give_up_at = time.monotonic() + self._conf.harvest.statement_timeout_s
        return question(self._database.statements, self._connection)

    def _sides(self, lane: int) -> _Sides:
        identity, state = self._ask(lambda statements, c: statements.state(c, self._conf.election.lanes))
        purged: dict[int, int] = self._ask(lambda statements, c: statements.purged_of_all(c))
        return _Sides(identity, state, purged.get(lane, 0))

    def _refuse_unknown(self, lane: int, state: StateRow) -> None:
        known = max(state.lane_count, self._history.partitions())
        if not 0 <= lane < known:
            raise NotResolved(f"There is no lane {lane}: lanes and their ledger partitions are 0 to {known - 1}.")

    def _records(self, lane: int) -> Iterator[Record]:
        try:
            yield from self._history.newest_first(lane, time.monotonic() + _ALL_S)
        except LedgerMissing:
            return  # deleted: nothing is in it

    def _decoded(self, lane: int) -> Iterator[Entry | LedgerEntryError]:
        for payload, headers in self._records(lane):
            try:
                yield ledger.decode(payload, headers)
            except LedgerEntryError as error:
                yield error

    def _known_versions(self, lane: int) -> Iterator[Entry | LedgerEntryError]:
        for found in self._decoded(lane):
            if isinstance(found, UnknownEntryVersion):
                raise NotResolved(str(found)) from found
            yield found

    def _judged(self, lane: int, sides: _Sides, entry: Entry | None) -> Case:
        if resolution.is_in_use(lane, sides.state):
            found = self._decision(lane, sides, entry)
        else:
            found = decisions.idle_lane(lane, sides.state.lane_count, sides.identity, sides.purged, entry)
        case = resolution.case_of(lane, sides.identity, sides.purged, entry, found)
        if case.reason is Why.OTHER_LANE:
            return replace(case, last=next(self._entries(lane, sides.identity), None))
        return case

    def _decision(self, lane: int, sides: _Sides, entry: Entry | None) -> Any:
        again = self._sides(lane).purged
        facts = Facts(lane, sides.identity, sides.state, sides.purged, entry, again, settling=True)
        found = decisions.takeover(facts)
        if isinstance(found, decisions.LookUpRows):
            assert entry is not None
            rows = self._ask(lambda statements, c: statements.look_up(c, entry.ids))
            return decisions.settle(entry, decisions.found_rows(entry, rows.count, rows.digest, rows.newest))
        return found

    def _entries(self, lane: int, database: UUID) -> Iterator[Entry]:
        for found in self._decoded(lane):
            if isinstance(found, Entry) and found.lane == lane and found.database == database:
                yield found

    def _listed(self, case: Case) -> Iterator[Listed]:
        database = case.last.database if case.last is not None else case.database
        after = 0 if case.is_foreign else case.purged
        for entry in entries_after(after, case.lane, database, self._entries(case.lane, database)):
            yield self._beside_the_table(entry, is_foreign=case.is_foreign)

    def _beside_the_table(self, entry: Entry, *, is_foreign: bool) -> Listed:
        found = self._ask(lambda statements, c: statements.look_up(c, entry.ids))
        whole = is_sent_as_a_whole(entry, found.count, found.digest, found.newest)
        if whole is not None or is_foreign:
            return Listed(entry, found.count, found.count if whole else 0, is_whole=True, filenode=found.filenode)
        sent = self._ask(lambda statements, c: statements.sent(c, entry.ids, entry.up_to))
        return Listed(entry, found.count, sent, filenode=found.filenode)

    # ---- acting

    def resolve(self, lane: int, decision: Resolution) -> ResolutionOutcome:
        """Fence every owner, look, and do what the decision says."""
        self._refuse_unknown(lane, self._sides(lane).state)
        for _ in range(_ATTEMPTS_MAX):
            case = self.examine(lane)
            if case.reason is None:
                return ResolutionOutcome(case, decision)
            if reason := objection(case, decision):
                raise NotResolved(f"Lane {lane} was not changed: {reason}.")
            outcome = self._try(case, decision)
            if outcome is not None:
                return outcome
            time.sleep(_AGAIN_S)
        raise NotResolved(f"Lane {lane} was not changed: its owner changed it at every attempt. Stop the owner first.")

    def _try(self, case: Case, decision: Resolution) -> ResolutionOutcome | None:
        """None: the lane is not as it was examined."""
        from confluent_kafka import KafkaException

        producer = self._fence(case.lane)
        with closing(_Dropped(producer)):
            again = self.examine(case.lane)
            if (again.purged, again.last, again.reason) != (case.purged, case.last, case.reason):
                return None
            deleted = self._settle_by_hand(again, decision)
            if deleted is None:
                return None
            failpoint("before-copy")
            try:
                if again.needs_copy:
                    self._copy(producer, again)
            except (KafkaException, SystemError) as error:
                logger.warning("ledger_not_adopted lane=%d reason=%r", case.lane, str(error))
                return None  # an owner has looked at the lane meanwhile; what was deleted was sent
        logger.warning(
            "lane_resolved lane=%d purged_before=%d purged=%d deleted=%d adopted=%s",
            case.lane, again.purged, again.committed, deleted, again.needs_copy,
        )  # fmt: skip
        return ResolutionOutcome(again, decision, deleted)

    def _fence(self, lane: int) -> TransactionalProducer:
        name = f"{self._conf.name}-{lane}"
        properties = properties_of(
            self._conf.producer_properties, name, transaction_timeout_s=self._conf.exactly_once.transaction_timeout_s
        )
        producer = initialised(
            lambda: TransactionalProducer(properties), name, time.monotonic() + _INIT_S, lambda: True
        )
        assert producer is not None
        return producer

    def _settle_by_hand(self, case: Case, decision: Resolution) -> int | None:
        """Rows and number in one transaction."""

        def act(statements: Any, connection: Any) -> int | None:
            with connection.transaction():
                deleted = 0
                for listed in case.listed if decision.delete_sent else ():
                    connection.give_up_at = time.monotonic() + self._conf.harvest.statement_timeout_s
                    if listed.sent:
                        if not statements.keep_file(connection, listed.filenode):
                            raise _Changed
                        up_to = None if listed.is_whole else listed.entry.up_to
                        deleted += statements.delete_sent(connection, listed.entry.ids, up_to)
                        if left := statements.sent(connection, listed.entry.ids, up_to):
                            raise keepers.kept(connection, statements.table, left, marks=False)
                if not statements.set_purged(connection, case.lane, case.purged, case.committed):
                    raise _Changed
            return deleted

        try:
            found: int | None = self._ask(act)
        except _Changed:
            return None
        return found

    def _copy(self, producer: TransactionalProducer, case: Case) -> None:
        """The last batch once more, in this database's name: from here on the partition is this lane's."""
        entry = resolution.copied(case, uuid4(), self._sides(case.lane).state.resize_no)
        producer.begin()
        producer.send_entry(
            self._history.name,
            case.lane,
            ledger.entry_key(case.lane),
            ledger.encode(entry),
            ledger.headers(entry),
        )
        producer.commit(self._conf.exactly_once.commit_timeout_s)


class _Changed(Exception):
    """Rolls back."""


class _Dropped:
    def __init__(self, producer: TransactionalProducer) -> None:
        self._producer = producer

    def close(self) -> None:
        self._producer.drop_and_wait()
