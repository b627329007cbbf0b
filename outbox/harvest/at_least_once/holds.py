"""Holds of an at-least-once lane in their table: what was refused is written there, what operators want is read.

The scoreboard keeps the order of a key whose head was refused, as long as its leader lives. Here stands what outlives
it, and what others may ask for. What operators pause is left out of the marks; a lane that has such rows in flight
begins again with its marks, and confirms when that is done. Deletions are guarded by the leader id, as every purge is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from outbox.conf import Conf
from outbox.core import faults
from outbox.core.at_least_once.scoreboard import Phase, Scoreboard
from outbox.core.at_least_once.values import RecordHeld
from outbox.core.holds.values import (
    BY_OPERATORS,
    DISCARD,
    OF_RECORDS,
    POISON,
    REJECTED,
    RETRY,
    DeadRecord,
    HoldActions,
    HoldRow,
    fate_of,
    is_given_up,
    rejected,
)
from outbox.edges.postgres.at_least_once.marks import Scopes
from outbox.harvest.at_least_once.ports import HoldStatements
from outbox.harvest.at_least_once.statements import StatementRunner

logger = logging.getLogger("outbox.harvest")

_LOOK_S, _LANES_MAX = 1.0, 4
_NEVER = float("inf")
_GOHARVEST_S = 30.0  # between two looks for the tables, where there are none
_DEAD_RECORDS_MAX = 1_000
_AGAIN_S = 5.0  # after a deletion that failed
_NOT_MARKED = (*BY_OPERATORS, POISON)


@dataclass(frozen=True, slots=True)
class _Scope:
    topic: str
    key: str | None
    lane: int | None
    record_id: int | None


class HeldMarks:
    """Owned by the lane's thread, which calls everything here."""

    def __init__(self, conf: Conf, lane: int, board: Scoreboard, statements: StatementRunner) -> None:
        self._conf, self._lane, self._board, self._statements = conf, lane, board, statements
        self._table, self._unmarked = statements.database.holds(), statements.database.unmarked_holds()
        self._exists = False
        self._look_at = 0.0
        self._pause_s = _LOOK_S
        self._is_looking = False
        self._is_first = True
        self._scopes: frozenset[_Scope] = frozenset()
        self._before: Any = None  # the leader id under which rows of these may still be in flight
        self._confirming = False
        self._leaving: set[int] = set()  # records whose deletion is under way
        self._placed: dict[tuple[str, str, int], HoldRow] = {}  # not written yet, by what they hold
        self._dead_records: list[
            tuple[UUID, DeadRecord]
        ] = []  # not written yet, with the leader id that had them marked
        self._writing = 0  # writes of such that are under way

    @property
    def may_mark(self) -> bool:
        """Not before the holds were looked at once."""
        return not self._is_first

    @property
    def paused(self) -> int:
        """How much operators hold back, beside what was refused."""
        return len(self._scopes)

    def look(self, now: float, lanes: int) -> None:
        """Once a second, or less often where one process has several lanes: an idle one asks little."""
        if self._is_looking or now < self._look_at:
            return
        self._is_looking, self._pause_s = True, _LOOK_S * min(lanes, _LANES_MAX)
        self._statements.look("holds", self._load, self._loaded, self._failed)

    def refused(self, event: RecordHeld, now: float) -> None:
        """A record is held: for people to see, or to become a dead letter."""
        if not self._exists:
            return
        topic, key = event.topic, event.name[1] if isinstance(event.name, tuple) else ""
        held = rejected(event.id, topic, key, event.attempts, event.error, max(0.0, event.retry_at - now))
        is_own = faults.KINDS.get(held.code) is not faults.Kind.TOPIC
        if is_own and is_given_up(event.attempts, self._attempts_max(topic)):
            self._await_deletion([event.id])
            self._dead_records.append((self._board.leader_id, DeadRecord(held, REJECTED)))
        else:
            self._placed[topic, key, 0 if key else event.id] = held
        self._write_refused()

    def _attempts_max(self, topic: str) -> int:
        return self._conf.rejections.rejection_attempts if self._conf.rejections.skips(topic) else 0

    def _write_refused(self) -> None:
        """All that was refused since the last such write was sent, in one: each waits for PostgreSQL's disk, and purges
        wait behind it."""
        if self._writing:
            return
        placed, self._placed = [*self._placed.values()], {}
        dead_records, self._dead_records = (
            self._dead_records[:_DEAD_RECORDS_MAX],
            self._dead_records[_DEAD_RECORDS_MAX:],
        )
        if placed:
            self._writing += 1
            write = partial(self._table.write, placed=placed, lifted=())
            self._statements.run("hold", write, lambda result, now: self._written(), lambda now: self._written())
        # Of an older leader id: a record that was marked again may be in flight again.
        self._leaving.difference_update(b.hold.head for leader, b in dead_records if leader != self._board.leader_id)
        left = tuple(dead_record for leader, dead_record in dead_records if leader == self._board.leader_id)
        if left:
            self._writing += 1
            self._run(self._statements.run, self._table, HoldActions(left), self._written)

    def _written(self) -> None:
        self._writing -= 1
        if self._placed or self._dead_records:
            self._write_refused()

    # ---- looking

    def _load(self, connection: Any) -> list[HoldRow] | None:
        self._exists = self._exists or self._table.exist(connection)
        return self._table.load(connection, self._conf.election.lanes) if self._exists else None

    def _failed(self, now: float) -> None:
        self._is_looking, self._look_at = False, now + self._pause_s

    def _loaded(self, rows: Sequence[HoldRow] | None, now: float) -> None:
        self._is_looking, self._look_at = False, now + (self._pause_s if self._exists else _GOHARVEST_S)
        mine = [row for row in rows or () if row.of_lane in (None, self._lane)]
        self._heed_operators([row for row in mine if row.reason in _NOT_MARKED and row.wanted != RETRY], now)
        refused = [row for row in mine if row.reason in OF_RECORDS and row.record_id is not None]
        self._heed_refused(refused, now)
        self._is_first = False

    def _heed_operators(self, rows: Sequence[HoldRow], now: float) -> None:
        board = self._board
        no_key = None if self._conf.harvest.keep_empty_key else ""  # whose records are held one by one
        scopes = frozenset(
            _Scope(r.topic, r.key, r.lane, r.record_id if r.key is not None and r.key == no_key else None) for r in rows
        )
        if not scopes <= self._scopes:
            self._before = None if board.phase is Phase.TAKING else board.leader_id
            board.remark("holds", now)
        self._scopes = scopes
        self._statements.marks.held = _as_marks_see(scopes)
        wanted = tuple(row.id for row in rows if row.reason != POISON and self._lane not in row.confirmed_by)
        if wanted and self._is_over and not self._confirming:
            self._confirming = True
            job = partial(self._table.run, lane=self._lane, hold_actions=HoldActions(confirmed=wanted))
            self._statements.run_as_owner("confirm", job, self._confirmed, partial(self._confirmed, None))

    @property
    def _is_over(self) -> bool:
        """Whether no row of the scopes is in flight any more."""
        return self._board.phase is Phase.RUNNING and self._board.leader_id != self._before

    def _confirmed(self, result: Any, now: float) -> None:
        self._confirming = False

    def _heed_refused(self, rows: Sequence[HoldRow], now: float) -> None:
        gone = [row.record_id for row in rows if not row.is_there and row.record_id is not None]
        if gone:
            self._write(partial(self._table.write, placed=(), lifted=gone))
        for row in rows:
            if row.is_there and row.record_id is not None:
                self._heed(row, row.record_id, now)

    def _heed(self, row: HoldRow, id_: int, now: float) -> None:
        board, is_rejected = self._board, row.reason == REJECTED
        if self._is_first and is_rejected and row.key is not None:
            name = (row.topic, row.key) if row.key or self._conf.harvest.keep_empty_key else id_
            board.expect(id_, name, row.attempts, now + (row.due_s if row.due_s is not None else _AGAIN_S))
        fate = fate_of(row, self._attempts_max(row.topic))
        if id_ in self._leaving:
            return  # also when another attempt is wanted meanwhile: it must not be sent beside its deletion
        if row.wanted == RETRY:
            board.retry(id_, now)
        elif fate:
            hold_actions = HoldActions(discarded=(id_,)) if fate == DISCARD else HoldActions((DeadRecord(row, fate),))
            if board.is_asleep(id_):
                self._delete(hold_actions)
            elif not is_rejected and self._is_over and not board.knows(id_):
                self._delete_unmarked(hold_actions)

    # ---- deleting

    def _delete(self, hold_actions: HoldActions) -> None:
        """The record sleeps until this is decided, so it is not on its way."""
        self._await_deletion(hold_actions.heads)
        self._run(self._statements.run, self._table, hold_actions)

    def _await_deletion(self, ids: Sequence[int]) -> None:
        self._leaving |= set(ids)
        for id_ in ids:
            self._board.retry(id_, _NEVER)

    def _delete_unmarked(self, hold_actions: HoldActions) -> None:
        """One that is left out of the marks: as long as the takeover stands, nobody else has it in flight either."""
        self._run(self._statements.run_as_owner, self._unmarked, hold_actions)

    def _run(
        self,
        run: Callable[..., None],
        table: HoldStatements,
        hold_actions: HoldActions,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        ids, leader = hold_actions.heads, self._board.leader_id
        self._leaving |= set(ids)

        def job(connection: Any) -> frozenset[int]:
            with connection.transaction():
                return table.run(connection, self._lane, hold_actions, leader=leader)

        def done(gone: frozenset[int], now: float) -> None:
            self._leaving -= set(ids)
            for dead_record in hold_actions.dead_records:
                if dead_record.hold.head in gone:
                    logger.warning(
                        "dead_letter lane=%d id=%d reason=%s attempts=%d error=%r",
                        self._lane, dead_record.hold.head, dead_record.reason, dead_record.hold.attempts,
                        dead_record.hold.error,
                    )  # fmt: skip
            self._board.gone(gone, now)
            for id_ in ids:
                if id_ not in gone:  # marked again by a remark, for instance: its successors must not overtake it
                    self._board.retry(id_, now + _AGAIN_S)
            then()

        def failed(now: float) -> None:
            done(frozenset(), now)

        run("dead_letter", job, done, failed)

    def _write(self, job: Callable[[Any], Any]) -> None:
        self._statements.run("hold", job, lambda result, now: None, lambda now: None)


def _as_marks_see(scopes: frozenset[_Scope]) -> Scopes:
    topics = {s.topic for s in scopes if s.key is None and s.lane is None}
    keys = {(s.topic, s.key) for s in scopes if s.key is not None and s.record_id is None}
    ids = {s.record_id for s in scopes if s.record_id is not None}
    return Scopes(frozenset(topics), frozenset(keys), frozenset(ids), any(s.lane is not None for s in scopes))
