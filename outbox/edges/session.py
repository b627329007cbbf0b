"""One PostgreSQL connection and the thread that uses it: jobs in order, outcomes to a queue, a bound on every wait.

The owner never waits for the database. A statement that exceeds its time is given up here even when the server does
not answer at all (its own statement_timeout cannot help then); its outcome is unknown and the connection is closed.
Which statements there are belongs elsewhere.
"""

from __future__ import annotations

import os
import random
import select
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import psycopg
from psycopg import waiting

from outbox.exceptions import OutboxError

_RETRY_MIN_S = 0.1
_RETRY_MAX_S = 2.0
_POLL = {waiting.WAIT_R: select.POLLIN, waiting.WAIT_W: select.POLLOUT, waiting.WAIT_RW: select.POLLIN | select.POLLOUT}


class StatementOverdue(psycopg.OperationalError):
    """The server has not answered in time; whether the statement took effect is unknown."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection whose waits end at `give_up_at`, or as soon as `interrupt` becomes readable. While it waits,
    `meanwhile` is called every `meanwhile_s`."""

    give_up_at = float("inf")
    backend = ""  # with which it began, see `edges.backends`
    interrupt: int | None = None
    meanwhile: Callable[[], None] | None = None
    meanwhile_s = 3600.0

    def wait(self, gen: Any, interval: float = 0.0, timeout: float | None = None) -> Any:
        poll = select.poll()
        socket = self.pgconn.socket
        if self.interrupt is not None:
            poll.register(self.interrupt, select.POLLIN)
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
                raise StatementOverdue("PostgreSQL did not answer in time; the connection was given up.")
            found = dict(poll.poll(min(left_s, self.meanwhile_s) * 1000 + 1))
            if not found and self.meanwhile is not None:
                self.meanwhile()
            if self.interrupt in found:
                raise StatementOverdue("The statement was given up: its lane has ended.")
            if events := found.get(socket):
                trouble = events & ~(select.POLLIN | select.POLLOUT)
                ready = (events & select.POLLIN and waiting.READY_R) | (events & select.POLLOUT and waiting.READY_W)
                return waiting.READY_RW if trouble else waiting.Ready(ready)


Job = Callable[[psycopg.Connection[Any]], Any]
Report = Any  # the owner's, handed back with the outcome
Connect = Callable[[], BoundedConnection]


class Session:
    """Runs jobs on one connection, in order. `post` takes (report, result, error) and must not block."""

    def __init__(
        self, name: str, connect: Connect, post: Callable[[tuple[Report, Any, BaseException | None]], None]
    ) -> None:
        self._connect, self._post = connect, post
        self._jobs: SimpleQueue[tuple[Job, Report, float, bool] | None] = SimpleQueue()
        self._connection: BoundedConnection | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._last_error: BaseException | None = None
        self._ended = False
        self._pipe = threading.Lock()
        self._interrupt_r, self._interrupt_w = os.pipe()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job, report: Report, timeout_s: float, *, renew: bool = False) -> None:
        """`renew`: on a new connection, the old one is closed."""
        self._jobs.put((job, report, timeout_s, renew))

    def close(self) -> None:
        """What was submitted is still carried out. Does not block."""
        self._jobs.put(None)

    def interrupt(self) -> None:
        """Give up what is under way. Does not block."""
        with self._pipe:
            if not self._ended:
                os.write(self._interrupt_w, b"x")

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
            with self._pipe:
                self._ended = True
                os.close(self._interrupt_r)
                os.close(self._interrupt_w)

    def _settle(self, error: BaseException) -> None:
        """A refused statement leaves the connection usable; anything else ends it, also the loss of what the session
        had prepared."""
        connection = self._connection
        refused = isinstance(error, OutboxError) or (isinstance(error, psycopg.Error) and error.sqlstate is not None)
        refused = refused and not isinstance(error, StatementOverdue | psycopg.errors.InvalidSqlStatementName)
        if connection is not None and (connection.broken or not refused):
            self._drop()

    def _connected(self, timeout_s: float, *, renew: bool) -> BoundedConnection:
        if renew:
            self._drop()
        connection = self._connection
        if connection is None or connection.closed:
            connection = self._open()
        connection.give_up_at = time.monotonic() + timeout_s
        return connection

    def _open(self) -> BoundedConnection:
        now = time.monotonic()
        if now < self._retry_at and self._last_error is not None:
            raise self._last_error
        try:
            connection = self._connect()
        except BaseException as error:
            self._failures += 1
            pause_s = min(_RETRY_MAX_S, _RETRY_MIN_S * 2 ** min(self._failures, 10))
            self._retry_at = time.monotonic() + pause_s * random.uniform(0.5, 1.0)
            self._last_error = error
            raise
        self._failures, self._last_error = 0, None
        connection.interrupt = self._interrupt_r
        self._connection = connection
        return connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except psycopg.Error:
                pass
