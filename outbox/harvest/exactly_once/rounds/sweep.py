"""The net of exactly-once delivery, for writers that break the rules of ids: everything visible is looked at in turn.

The frontier finds what writers do that keep the rules. A record whose id was set by hand, or comes from a cached
sequence, may become visible below what was read, and nothing tells of it. So the blocks of the table are looked at,
slice by slice, on a connection and in a thread of its own, for a hundredth of the time: reading never waits for it,
however much is dead in the table. `core.exactly_once.sweeping` says which slice is next, and when. What is found is
given back to the frontier; it may be wrong about that, and then one read begins lower than it had to.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from outbox.conf import Conf
from outbox.core.exactly_once.sweeping import Slices
from outbox.edges.postgres.common.session import OwnedConnection, Session
from outbox.edges.postgres.common.texts import explained
from outbox.edges.postgres.exactly_once.sweeper import Below, Found
from outbox.harvest.exactly_once.ports import Servers, SweeperPort
from outbox.harvest.readings import Troubles


class TableSweep:
    """Asked by the reading thread; `take` has what was found since."""

    def __init__(self, conf: Conf, servers: Servers) -> None:
        self._conf, self._database = conf, servers.database
        runtime = self._runtime = servers.runtime
        self._session: Session | None = None
        self._sweeper: SweeperPort | None = None
        self._slices = Slices(conf.harvest.sweep_interval_s, conf.harvest.statement_timeout_s, runtime.monotonic())
        self._found: list[Found] = []
        self._troubles = Troubles(-1, runtime)

    @property
    def passes(self) -> int:
        return self._slices.passes

    def is_due(self, now: float) -> bool:
        return self._slices.is_due(now)

    def look(self, below: Below, lanes: int) -> None:
        """At the next slice, in the background."""
        if self._session is None:
            self._session = Session("outbox-sweep", self._connect, self._post, self._runtime)
        sweeper = self._sweeper
        if sweeper is None or sweeper.lanes != lanes:
            sweeper = self._sweeper = self._database.sweeper(lanes)
        self._slices.begin(self._runtime.monotonic())
        self._session.submit(partial(self._slice, sweeper, below), None, self._conf.harvest.statement_timeout_s + 1)

    def take(self) -> list[Found]:
        if self._slices.is_under_way:
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
        found, size = sweeper.look(connection, self._slices.block, self._slices.blocks, below)
        return found, size, self._runtime.monotonic() - begun

    def _post(self, outcome: tuple[Any, Any, BaseException | None]) -> None:
        _, result, error = outcome
        now = self._runtime.monotonic()
        if error is not None:
            self._troubles.seen("read", explained(error))
            self._slices.failed(now)
            return
        self._troubles.over("read")
        found, size, took_s = result
        if found:
            self._found = self._found + found
        self._slices.looked(now, len(found), size, took_s)
