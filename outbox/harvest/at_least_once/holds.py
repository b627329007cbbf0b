"""Holds of an at-least-once lane in their table: carries out what `core.at_least_once.held` asks for, and tells it what
came of it.

Deletions are guarded by the leader id, as every purge is. What is left out of the marks is deleted on the session that
has taken the lane over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from outbox.conf import Conf
from outbox.core.at_least_once.held import (
    ConfirmHolds,
    HeldRecords,
    HoldScope,
    LiftHolds,
    PlaceHolds,
    RemoveRecords,
    ToDo,
)
from outbox.core.at_least_once.scoreboard import Scoreboard
from outbox.core.at_least_once.values import RecordHeld
from outbox.core.holds.values import HoldActions, HoldRow
from outbox.edges.postgres.at_least_once.marks import Scopes
from outbox.harvest.at_least_once.ports import HoldStatements
from outbox.harvest.at_least_once.statements import StatementRunner

logger = logging.getLogger("outbox.harvest")


class HeldMarks:
    """Owned by the lane's thread, which calls everything here."""

    def __init__(self, conf: Conf, lane: int, board: Scoreboard, statements: StatementRunner) -> None:
        self._conf, self._lane, self._statements = conf, lane, statements
        self._table, self._unmarked = statements.database.holds(), statements.database.unmarked_holds()
        self._exists = False  # the table does, as the sessions know
        self._held = HeldRecords(
            lane,
            board,
            lambda topic: conf.rejections.rejection_attempts if conf.rejections.skips(topic) else 0,
            keep_empty_key=conf.harvest.keep_empty_key,
        )

    @property
    def may_mark(self) -> bool:
        return self._held.may_mark

    @property
    def paused(self) -> int:
        """How much operators hold back, beside what was refused."""
        return len(self._held.scopes)

    def look(self, now: float, lanes: int) -> None:
        if self._held.looks(now, lanes):
            self._statements.look("holds", self._load, self._loaded, self._held.failed)

    def refused(self, event: RecordHeld, now: float) -> None:
        self._carry_out(self._held.rejected(event, now))

    def _load(self, connection: Any) -> list[HoldRow] | None:
        self._exists = self._exists or self._table.exist(connection)
        return self._table.load(connection, self._conf.election.lanes) if self._exists else None

    def _loaded(self, rows: Sequence[HoldRow] | None, now: float) -> None:
        to_do = self._held.loaded(rows, now)
        self._statements.marks.held = _as_marks_see(self._held.scopes)
        self._carry_out(to_do)

    # ---- what is to be done

    def _carry_out(self, to_do: Iterable[ToDo]) -> None:
        for each in to_do:
            match each:
                case PlaceHolds(rows):
                    self._write(partial(self._table.write, placed=[*rows], lifted=()), self._written)
                case LiftHolds(ids):
                    self._write(partial(self._table.write, placed=(), lifted=[*ids]), lambda: None)
                case RemoveRecords():
                    self._remove(each)
                case ConfirmHolds(ids):
                    self._confirm(HoldActions(confirmed=ids))

    def _write(self, job: Callable[[Any], Any], then: Callable[[], None]) -> None:
        self._statements.run("hold", job, lambda result, now: then(), lambda now: then())

    def _written(self) -> None:
        self._carry_out(self._held.written())

    def _confirm(self, hold_actions: HoldActions) -> None:
        job = partial(self._table.run, lane=self._lane, hold_actions=hold_actions)
        then = self._held.confirmed
        self._statements.run_as_owner("confirm", job, lambda result, now: then(), lambda now: then())

    def _remove(self, removal: RemoveRecords) -> None:
        if removal.are_marked:
            self._run(self._statements.run, self._table, removal)
        else:
            self._run(self._statements.run_as_owner, self._unmarked, removal)

    def _run(self, run: Callable[..., None], table: HoldStatements, removal: RemoveRecords) -> None:
        hold_actions = removal.hold_actions

        def job(connection: Any) -> frozenset[int]:
            with connection.transaction():
                return table.run(connection, self._lane, hold_actions, leader=removal.leader_id)

        def done(gone: frozenset[int], now: float) -> None:
            for dead_record in hold_actions.dead_records:
                if dead_record.hold.head in gone:
                    logger.warning(
                        "dead_letter lane=%d id=%d reason=%s attempts=%d error=%r",
                        self._lane, dead_record.hold.head, dead_record.reason, dead_record.hold.attempts,
                        dead_record.hold.error,
                    )  # fmt: skip
            self._carry_out(self._held.removed(removal, gone, now))

        run("dead_letter", job, done, lambda now: done(frozenset(), now))


def _as_marks_see(scopes: frozenset[HoldScope]) -> Scopes:
    topics = {s.topic for s in scopes if s.key is None and s.lane is None}
    keys = {(s.topic, s.key) for s in scopes if s.key is not None and s.record_id is None}
    ids = {s.record_id for s in scopes if s.record_id is not None}
    return Scopes(frozenset(topics), frozenset(keys), frozenset(ids), any(s.lane is not None for s in scopes))
