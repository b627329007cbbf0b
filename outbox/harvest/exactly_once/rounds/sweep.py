"""The net of exactly-once delivery, for writers that break the rules of ids: everything visible is looked at in turn.

The frontier finds what writers do that keep the rules. A record whose id was set by hand, or comes from a cached
sequence, may become visible below what was read, and nothing tells of it. So the blocks of the table are looked at,
slice by slice, on a connection and in a thread of its own, for a hundredth of the time: reading never waits for it,
however much is dead in the table. After a slice that took long, the next ones are smaller. What is found is given back
to the frontier; it may be wrong about that, and then one read begins lower than it had to.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from outbox.conf import Conf
from outbox.edges.postgres.common.session import OwnedConnection, Session
from outbox.edges.postgres.common.texts import explained
from outbox.edges.postgres.exactly_once.sweeper import Below, Found
from outbox.harvest.exactly_once.ports import Servers, SweeperPort
from outbox.harvest.readings import Troubles

_SHARE = 100  # a slice may take so small a part of the time
_PAUSE_S = 5.0  # between slices at the least: an idle process asks PostgreSQL little
_SLICE_S = 0.6  # a slice that takes longer makes the next ones smaller, and its pause no longer
_BLOCKS_FIRST, _BLOCKS_MIN, _BLOCKS_MAX = 256, 16, 4096
_ROWS_MAX = 20_000  # of a slice; more are those of held keys


class TableSweep:
    """Asked by the reading thread; `take` has what was found since."""

    def __init__(self, conf: Conf, servers: Servers) -> None:
        self._conf, self._database = conf, servers.database
        runtime = self._runtime = servers.runtime
        self._session: Session | None = None
        self._sweeper: SweeperPort | None = None
        self._block, self._blocks = 0, _BLOCKS_FIRST
        self._is_under_way = False  # whose turn it is: while it is, everything here belongs to the session's thread
        self._begun_at = runtime.monotonic()
        self._next_at = self._begun_at + conf.harvest.sweep_interval_s
        self._found: list[Found] = []
        self._troubles = Troubles(-1, runtime)
        self.passes = 0

    def is_due(self, now: float) -> bool:
        return not self._is_under_way and now >= self._next_at

    def look(self, below: Below, lanes: int) -> None:
        """At the next slice, in the background."""
        if self._session is None:
            self._session = Session("outbox-sweep", self._connect, self._post, self._runtime)
        sweeper = self._sweeper
        if sweeper is None or sweeper.lanes != lanes:
            sweeper = self._sweeper = self._database.sweeper(lanes)
        if not self._block:
            self._begun_at = self._runtime.monotonic()
        self._is_under_way = True
        self._session.submit(partial(self._slice, sweeper, below), None, self._conf.harvest.statement_timeout_s + 1)

    def take(self) -> list[Found]:
        if self._is_under_way:
            return []  # what it finds is there the next time
        found, self._found = self._found, []
        return found

    def close(self) -> None:
        """Does not block."""
        if self._session is not None:
            self._session.close()
            self._session.interrupt()

    # ---- in the session's thread

    def _connect(self) -> OwnedConnection:
        assert self._sweeper is not None
        connection = self._database.connect("sweep")
        try:
            self._sweeper.prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _slice(self, sweeper: SweeperPort, below: Below, connection: Any) -> tuple[list[Found], int, float]:
        begun = self._runtime.monotonic()
        found, size = sweeper.look(connection, self._block, self._blocks, below)
        return found, size, self._runtime.monotonic() - begun

    def _post(self, outcome: tuple[Any, Any, BaseException | None]) -> None:
        _, result, error = outcome
        now = self._runtime.monotonic()
        if error is not None:
            self._troubles.seen("read", explained(error))
            self._blocks = max(_BLOCKS_MIN, self._blocks // 4)
            self._next_at = now + self._conf.harvest.statement_timeout_s
        else:
            self._troubles.over("read")
            self._note(now, *result)
        self._is_under_way = False

    def _note(self, now: float, found: list[Found], size: int, took_s: float) -> None:
        self._block += self._blocks
        # The answer may have come late, or the process was stopped meanwhile: for how long, nothing limits.
        self._next_at = now + max(min(_PAUSE_S, self._conf.harvest.sweep_interval_s), _SHARE * min(took_s, _SLICE_S))
        if self._block >= size:
            self._block = 0
            self.passes += 1
            self._next_at = max(self._next_at, self._begun_at + self._conf.harvest.sweep_interval_s)
        if len(found) > _ROWS_MAX or took_s > _SLICE_S:
            self._blocks = max(_BLOCKS_MIN, self._blocks // 4)
        elif len(found) < _ROWS_MAX // 4 and took_s < _SLICE_S / 4:
            self._blocks = min(_BLOCKS_MAX, 4 * self._blocks)
        if found:
            self._found = self._found + found
