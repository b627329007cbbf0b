"""The statements of one at-least-once lane: each effect of the scoreboard becomes a job, each outcome a report to it.

There are two sessions. Marks, and the statements that may not run beside them, use the session that has taken the lane
over; purges and resets use the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from outbox.conf import Conf
from outbox.core.at_least_once import values as values
from outbox.core.at_least_once.scoreboard import Scoreboard
from outbox.edges.postgres.at_least_once.marks import WrongTable
from outbox.edges.postgres.common.backends import Pooled
from outbox.edges.postgres.common.leases import NoPrivileges, OtherMode
from outbox.edges.postgres.common.session import Session
from outbox.edges.postgres.common.texts import explained
from outbox.edges.postgres.preflight.keepers import RowsKept
from outbox.failpoints import failpoint
from outbox.harvest.at_least_once.ports import MarkServers
from outbox.harvest.lease_keeper import LeaseKeeper
from outbox.harvest.readings import Troubles

logger = logging.getLogger("outbox.harvest")

GRACE_S = 1.0  # for the statement under way when its time is over or the lane ends


class StatementRunner:
    """`post` hands an outcome to the thread that owns the scoreboard; everything else here is called by that thread."""

    def __init__(
        self,
        conf: Conf,
        lane: int,
        board: Scoreboard,
        servers: MarkServers,
        troubles: Troubles,
        lease: LeaseKeeper,
        *,
        post: Callable[[Callable[[float], None]], None],
        fatal: Callable[[BaseException], None],
        kept: Callable[[str], None],
    ) -> None:
        """`kept` hears why rows survive their DELETE, and an empty text when they do no longer."""
        self.under_way = 0
        self._lane = lane
        self._board, self._troubles, self._lease, self._hand_over, self._fatal = board, troubles, lease, post, fatal
        self._kept = kept
        self._timeout_s = conf.harvest.statement_timeout_s
        self._runtime, self.database = servers.runtime, servers.database
        self.marks = self._marks = self.database.marks(lane)
        self._owning_connection: Any = None
        connect = self.database.connect
        self.mark_session = Session(f"outbox-mark-{lane}", connect, self._post, self._runtime)
        self.purge_session = Session(f"outbox-purge-{lane}", connect, self._post, self._runtime)

    def effects(self) -> dict[type, Callable[[Any], None]]:
        return {
            values.TakeLane: self._take,
            values.Mark: self._mark,
            values.Fetch: self._fetch,
            values.Sweep: self._sweep,
            values.Purge: self._purge,
            values.Reset: self._reset,
        }

    def close(self) -> None:
        """What was submitted is carried out if that takes no longer than `GRACE_S`."""
        sessions = (self.mark_session, self.purge_session)
        for session in sessions:
            session.close()
        give_up_at = self._runtime.monotonic() + GRACE_S
        for session in sessions:
            if not session.join(give_up_at - self._runtime.monotonic()):
                session.interrupt()

    def _post(self, outcome: tuple[Any, Any, BaseException | None]) -> None:
        report, result, error = outcome

        def settle(now: float) -> None:
            self.under_way -= 1
            report(result, error, now)

        self._hand_over(settle)

    def _submit(
        self,
        session: Session,
        name: str,
        job: Callable[[Any], Any],
        done: Callable[[Any, float], None],
        failed: Callable[[float], None],
        *,
        renew: bool = False,
    ) -> None:
        def report(result: Any, error: BaseException | None, now: float) -> None:
            if error is None:
                self._troubles.over("database")
                done(result, now)
                return
            if isinstance(error, RowsKept):
                self._kept(str(error))
            else:
                self._troubles.seen("database", f"{name}: {explained(error)}")
            if isinstance(error, WrongTable | OtherMode | NoPrivileges | Pooled):
                self._fatal(error)
            failed(now)

        self.under_way += 1
        session.submit(job, report, self._timeout_s + GRACE_S, renew=renew)

    def run(
        self, name: str, job: Callable[[Any], Any], done: Callable[[Any, float], None], failed: Callable[[float], None]
    ) -> None:
        """Something else, beside the marks."""
        self._submit(self.purge_session, name, job, done, failed)

    def look(
        self, name: str, job: Callable[[Any], Any], done: Callable[[Any, float], None], failed: Callable[[float], None]
    ) -> None:
        """Between the marks: what is asked every second needs no connection of its own, and waits for no purge."""
        self._submit(self.mark_session, name, job, done, failed)

    def run_as_owner(
        self, name: str, job: Callable[[Any], Any], done: Callable[[Any, float], None], failed: Callable[[float], None]
    ) -> None:
        """On the session that has taken the lane over: if the job succeeds, no other owner has taken the lane since."""

        def checked(connection: Any) -> Any:
            self._require_ownership(connection)
            with self.database.transaction(connection):
                return job(connection)

        self._submit(self.mark_session, name, checked, done, failed)

    def _require_ownership(self, connection: Any) -> None:
        if connection is not self._owning_connection:
            raise ConnectionError("The connection that took the lane over is gone.")

    def beat(self) -> None:
        """Repeat the lease on the table when it is time."""
        if self._lease.beats():
            self._submit(self.purge_session, "beat", self._lease.take, lambda _, now: None, lambda now: None)

    def release_lease(self) -> None:
        """The last lane of the process ends cleanly: nobody has to wait until its lease is old."""
        self._submit(self.purge_session, "release", self._lease.release, lambda _, now: None, lambda now: None)

    def _take(self, effect: values.TakeLane) -> None:
        board, ticket, timeout_s = self._board, effect.ticket, self._timeout_s

        def done(taken: bool, now: float) -> None:
            failpoint("after-take")
            if not taken:
                logger.warning("lane_refused lane=%d by=%r", self._lane, self._marks.refused_by)
            (board.taken if taken else board.take_refused)(ticket, now)

        def job(connection: Any) -> bool:
            self._lease.take(connection)
            self._lease.prepared()
            taken = self._marks.take(connection, effect.epoch, timeout_s)
            self._owning_connection = connection if taken else None
            return taken

        self._submit(self.mark_session, "take", job, done, partial(board.take_failed, ticket), renew=True)

    def _mark(self, effect: values.Mark) -> None:
        board, marks = self._board, self._marks

        def done(result: tuple[Sequence[Any], dict[int, int]], now: float) -> None:
            rows, large = result
            if rows:
                failpoint("after-mark")
            board.marked(effect.ticket, rows, now, left_out=any(marks.held), large=large)

        def job(connection: Any) -> tuple[Sequence[Any], dict[int, int]]:
            self._require_ownership(connection)
            return marks.mark(connection, effect.leader_id, effect.limit, effect.exclude), marks.large

        self._submit(self.mark_session, "mark", job, done, partial(board.mark_failed, effect.ticket))

    def _fetch(self, effect: values.Fetch) -> None:
        board, ticket, marks, leader = self._board, effect.ticket, self._marks, effect.leader_id

        def job(connection: Any) -> tuple[Sequence[Any], list[int], dict[int, int]]:
            rows = marks.fetch(connection, leader, effect.ids)
            found = {row.id for row in rows}
            others = [id_ for id_ in effect.ids if id_ not in found]
            return rows, marks.look_up(connection, leader, others) if others else [], marks.large

        def done(result: tuple[Sequence[Any], list[int], dict[int, int]], now: float) -> None:
            rows, left, large = result
            board.fetched(ticket, rows, now, left=left, large=large)

        self._submit(self.mark_session, "fetch", job, done, partial(board.fetch_failed, ticket))

    def _sweep(self, effect: values.Sweep) -> None:
        board, ticket = self._board, effect.ticket
        self._submit(
            self.mark_session,
            "sweep",
            lambda connection: self._marks.sweep(connection, effect.leader_id, effect.limit),
            lambda ids, now: board.swept(ticket, ids, now),
            partial(board.sweep_failed, ticket),
        )

    def _purge(self, effect: values.Purge) -> None:
        board, ticket = self._board, effect.ticket

        def done(ids: list[int], now: float) -> None:
            failpoint("after-purge")
            self._kept("")
            board.purged(ticket, ids, now)

        failpoint("before-purge")
        self._submit(
            self.purge_session,
            "purge",
            lambda connection: self._marks.purge(connection, effect.leader_id, effect.ids),
            done,
            partial(board.purge_failed, ticket),
        )

    def _reset(self, effect: values.Reset) -> None:
        board, ticket = self._board, effect.ticket
        failpoint("before-reset")
        self._submit(
            self.purge_session,
            "reset",
            lambda connection: self._marks.reset(connection, effect.leader_id, effect.ids),
            lambda count, now: board.reset_done(ticket, now),
            partial(board.reset_failed, ticket),
        )
