"""One PostgreSQL connection and the thread that uses it: jobs in order, outcomes to a queue, a bound on every wait.

The owner never waits for the database. A statement that exceeds its time is given up here even when the server does
not answer at all (its own statement_timeout cannot help then); its outcome is unknown and the connection is closed.
Which statements there are belongs elsewhere.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

import psycopg
from psycopg import waiting

from outbox.exceptions import OutboxError
from outbox.runtime import Interrupt, Queue, Runtime
from outbox.runtime.threads import THREADS

_RETRY_MIN_S = 0.1
_RETRY_MAX_S = 2.0
_POLL = {waiting.WAIT_R: select.POLLIN, waiting.WAIT_W: select.POLLOUT, waiting.WAIT_RW: select.POLLIN | select.POLLOUT}


class StatementOverdue(psycopg.OperationalError):
    """The server has not answered in time; whether the statement took effect is unknown."""


class OwnedConnection(Protocol):
    """What the owner of a connection does with it, besides handing it to statements."""

    opened_at: float
    backend: str
    give_up_at: float
    interrupt: Interrupt | None
    meanwhile: Callable[[], None] | None
    meanwhile_s: float

    @property
    def closed(self) -> bool: ...

    @property
    def broken(self) -> bool: ...

    def close(self) -> None: ...

    def transaction(self) -> AbstractContextManager[Any]: ...


class BoundedConnection(psycopg.Connection[Any]):
    """A connection whose waits end at `give_up_at`, or as soon as `interrupt` is set. While it waits, `meanwhile` is
    called every `meanwhile_s`."""

    opened_at = float("-inf")  # on the monotonic clock, as whoever opens it has noted
    backend = ""  # with which it began, see `edges.postgres.common.backends`
    give_up_at = float("inf")
    interrupt: Interrupt | None = None
    meanwhile: Callable[[], None] | None = None
    meanwhile_s = 3600.0

    def limit(self, timeout_s: float) -> None:
        """Every wait from now on ends within this time."""
        self.give_up_at = time.monotonic() + timeout_s

    def wait(self, gen: Any, interval: float = 0.0, timeout: float | None = None) -> Any:
        poll = select.poll()
        socket = self.pgconn.socket
        if self.interrupt is not None:
            poll.register(self.interrupt.fileno(), select.POLLIN)
        try:
            state = next(gen)
            while True:
                poll.register(socket, _POLL[state])
                state = gen.send(self._ready(poll, socket))
        except StopIteration as stop:
            return stop.value

    def _ready(self, poll: Any, socket: int) -> Any:
        while True:
            left_s = self.give_up_at - time.monotonic()
            if left_s <= 0:
                raise StatementOverdue("PostgreSQL did not answer in time, so this process closed the connection.")
            found = dict(poll.poll(min(left_s, self.meanwhile_s) * 1000 + 1))
            if not found and self.meanwhile is not None:
                self.meanwhile()
            if self.interrupt is not None and self.interrupt.fileno() in found:
                raise StatementOverdue("This process gave the statement up, because its lane has ended.")
            if events := found.get(socket):
                trouble = events & ~(select.POLLIN | select.POLLOUT)
                ready = (events & select.POLLIN and waiting.READY_R) | (events & select.POLLOUT and waiting.READY_W)
                return waiting.READY_RW if trouble else waiting.Ready(ready)


def close_quietly(connection: OwnedConnection | None) -> None:
    """Let go of a connection that may be broken: what its end has to say is no news."""
    if connection is not None:
        with suppress(psycopg.Error):
            connection.close()


Job = Callable[[Any], Any]  # of a connection
Report = Any  # the owner's, handed back with the outcome
Connect = Callable[[], OwnedConnection]


class Session:
    """Runs jobs on one connection, in order. `post` takes (report, result, error) and must not block."""

    def __init__(
        self,
        name: str,
        connect: Connect,
        post: Callable[[tuple[Report, Any, BaseException | None]], None],
        runtime: Runtime = THREADS,
    ) -> None:
        self._connect, self._post, self._runtime = connect, post, runtime
        self._jobs: Queue[tuple[Job, Report, float, bool] | None] = runtime.queue()
        self._connection: OwnedConnection | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._last_error: BaseException | None = None
        self._interrupt = runtime.interrupt()
        self._thread = runtime.thread(self._run, name)
        self._thread.start()

    def submit(self, job: Job, report: Report, timeout_s: float, *, renew: bool = False) -> None:
        """`renew`: on a new connection, the old one is closed."""
        self._jobs.put((job, report, timeout_s, renew))

    def close(self) -> None:
        """What was submitted is still carried out. Does not block."""
        self._jobs.put(None)

    def interrupt(self) -> None:
        """Give up what is under way. Does not block."""
        self._interrupt.set()

    def join(self, timeout_s: float) -> bool:
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while (item := self._jobs.get()) is not None:
                job, report, timeout_s, renew = item
                try:
                    result = job(self._connected(timeout_s, renew=renew))
                except BaseException as error:  # the owner decides what an error means
                    self._settle(error)
                    self._post((report, None, error))
                else:
                    self._post((report, result, None))
        finally:
            self._drop()
            self._interrupt.close()

    def _settle(self, error: BaseException) -> None:
        """A refused statement leaves the connection usable; anything else ends it, also the loss of what the session
        had prepared."""
        connection = self._connection
        refused = isinstance(error, OutboxError) or (isinstance(error, psycopg.Error) and error.sqlstate is not None)
        refused = refused and not isinstance(error, StatementOverdue | psycopg.errors.InvalidSqlStatementName)
        if connection is not None and (connection.broken or not refused):
            self._drop()

    def _connected(self, timeout_s: float, *, renew: bool) -> OwnedConnection:
        if renew:
            self._drop()
        connection = self._connection
        if connection is None or connection.closed:
            connection = self._open()
        connection.give_up_at = self._runtime.monotonic() + timeout_s
        return connection

    def _open(self) -> OwnedConnection:
        now = self._runtime.monotonic()
        if now < self._retry_at and self._last_error is not None:
            raise self._last_error
        try:
            connection = self._connect()
        except BaseException as error:
            self._failures += 1
            pause_s = min(_RETRY_MAX_S, _RETRY_MIN_S * 2 ** min(self._failures, 10))
            self._retry_at = self._runtime.monotonic() + pause_s * (0.5 + 0.5 * self._runtime.random())
            self._last_error = error
            raise
        self._failures, self._last_error = 0, None
        connection.interrupt = self._interrupt
        self._connection = connection
        return connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        close_quietly(connection)
