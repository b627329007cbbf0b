"""The transaction around the functions of a consumer, on Django's connection: what they write is committed with the
position, or neither is.

`atomic()` ends without an exception although nothing was stored when a function has swallowed an error of the database,
called `set_rollback(True)` or closed the connection; and half a batch is stored after a raw COMMIT. So nothing is
committed here before `problem` was asked.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4

import psycopg
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections, transaction
from django.utils.connection import ConnectionDoesNotExist
from psycopg import sql
from psycopg.pq import TransactionStatus

from outbox.core.consumers import blame
from outbox.core.consumers.blame import Failure
from outbox.core.consumers.values import CommitInDoubt
from outbox.edges.postgres.consumers.positions import application_name
from outbox.exceptions import InvalidConsumer, NotAvailable, NotYet, StashOutsideTransaction

_CANCEL_S = 5.0
_NAME = f"outbox_{uuid4().hex[:12]}"
"""Of savepoints: the function has others."""
_MARK = f"/* mark */ SAVEPOINT {_NAME}"
# Checks what is deferred to COMMIT, and leaves it deferred for the messages that follow. Both set the savepoint for the
# next message: a round trip each is what a careful transaction takes longer.
_KEEP = (
    f"/* keep */ SAVEPOINT {_NAME}_check; SET CONSTRAINTS ALL IMMEDIATE; ROLLBACK TO SAVEPOINT {_NAME}_check; "
    f"RELEASE SAVEPOINT {_NAME}; SAVEPOINT {_NAME}"
)
_UNDO = f"/* undo */ ROLLBACK TO SAVEPOINT {_NAME}"
# A client that is gone without a word keeps its locks no longer than this.
_GONE = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10000",
}


class Transaction:
    """Of one worker: `begin`, and then either `commit` or `rollback`, in the worker's thread."""

    def __init__(self, alias: str, *, consumer: str, durable: bool = True, session_timeout_s: float) -> None:
        self._alias = alias
        self._settings = {
            "application_name": application_name(consumer),
            "lock_timeout": _ms(session_timeout_s),
            **_GONE,
            **({} if durable else {"synchronous_commit": "off"}),
        }
        self._begins: dict[float, str] = {}
        self._atomic: transaction.Atomic | None = None
        self._session: psycopg.Connection[Any] | None = None
        self._hooks = 0
        """Of on_commit, before the function was called."""
        self._is_marked = False

    def connection(self) -> Any:
        """Django's connection, open and outside of a transaction."""
        connection = connections[self._alias]
        if connection.connection is not None and connection.connection.closed:
            connection.close()
        connection.ensure_connection()
        if not connection.get_autocommit():
            connection.set_autocommit(True)
        return connection

    def begin(self, timeout_s: float) -> Any:
        """Its time limits are those of this transaction alone, so they hold behind a pooler of transactions too."""
        connection = self.connection()
        self._atomic = transaction.atomic(using=self._alias, durable=True)
        self._atomic.__enter__()
        self._session, self._is_marked = connection.connection, False
        try:
            with connection.cursor() as cursor:
                cursor.execute(self._begin(timeout_s))
        except BaseException:
            self.rollback()
            raise
        return connection

    def _begin(self, timeout_s: float) -> str:
        """The first statement, which is made once: it is a part of every transaction."""
        if timeout_s not in self._begins:
            limit = _ms(timeout_s)
            given = {**self._settings, "statement_timeout": limit, "idle_in_transaction_session_timeout": limit}
            calls = [sql.SQL("set_config({}, {}, true)").format(name, value) for name, value in given.items()]
            self._begins[timeout_s] = sql.SQL("/* begin */ SELECT {}").format(sql.SQL(", ").join(calls)).as_string()
        return self._begins[timeout_s]

    def problem(self) -> str:
        """Why the transaction cannot be committed although nothing was raised; empty: it can."""
        connection, session = connections[self._alias], self._session
        if connection.closed_in_transaction or session is None or connection.connection is not session:
            return "the connection was closed inside of the transaction"
        if session.closed:
            return "the connection to PostgreSQL was lost inside of the transaction"
        # Not IDLE: after a raw COMMIT the last statement finds another transaction, see `PositionsPort.write`.
        if session.info.transaction_status == TransactionStatus.INERROR:
            return "an error of the database was caught and swallowed; wrap what may fail in transaction.atomic()"
        if connection.needs_rollback:
            return "the transaction was marked for rollback, by set_rollback(True) or by an error that was swallowed"
        if connection.atomic_blocks[-1] is not self._atomic:
            return "an atomic() block was entered and never left"
        return ""

    # ---- one message

    def mark(self) -> None:
        """Sets a savepoint, if the message before has not left one."""
        session = self._session
        assert session is not None
        self._hooks = len(connections[self._alias].run_on_commit)
        if not self._is_marked:
            session.execute(_MARK)
            self._is_marked = True

    def keep(self) -> str:
        """Why what was done since `mark` cannot be trusted; empty: it is kept. Raises what a deferred constraint
        says."""
        if problem := self.problem():
            return problem
        session = self._session
        assert session is not None
        session.execute(_KEEP)
        return ""

    def undo(self) -> bool:
        """What was done since `mark`. False: the transaction is lost."""
        connection, session = connections[self._alias], self._session
        if session is None or session.closed or connection.connection is not session:
            return False
        try:
            session.execute(_UNDO)
        except psycopg.Error:
            return False
        del connection.run_on_commit[self._hooks :]
        connection.savepoint_ids.clear()
        del connection.atomic_blocks[1:]
        connection.needs_rollback = False
        return True

    # ---- the end

    def commit(self) -> list[Callable[[], None]]:
        """The hooks of `on_commit`, which the caller runs one by one: Django would drop those behind one that raises.
        Raises `CommitInDoubt`."""
        connection, session = connections[self._alias], self._session
        assert session is not None
        hooks = [hook[1] for hook in connection.run_on_commit]
        try:
            session.commit()
        except BaseException as error:
            is_lost = session.closed
            self.rollback()
            if is_lost:
                raise CommitInDoubt(hooks) from error
            raise
        connection.run_on_commit.clear()
        self._leave()
        return hooks

    def is_replaced(self, xid: int) -> bool:
        """After a failure, in the place of `rollback`: whether the transaction of this id was ended by the function.
        Raises what the connection says when the server does not."""
        is_another = self._is_another(xid)
        self.rollback()
        return is_another or bool(self.is_committed(xid))

    def _is_another(self, xid: int) -> bool:
        session = self._session
        if session is None or session.closed:
            return False
        if session.info.transaction_status != TransactionStatus.INTRANS:
            return session.info.transaction_status == TransactionStatus.IDLE
        with suppress(psycopg.Error):
            row = session.execute("/* replaced */ SELECT pg_current_xact_id_if_assigned()::text::bigint").fetchone()
            return row is not None and row[0] != xid
        return False

    def is_committed(self, xid: int) -> bool | None:
        """What the session itself cannot say after an error, and when it is lost. None: it is still under way."""
        try:
            with self.connection().cursor() as cursor:
                cursor.execute("/* replaced */ SELECT pg_xact_status(%s::text::xid8)", [xid])
                status = cursor.fetchone()[0]
        except Error as error:
            if getattr(error.__cause__, "sqlstate", None) != "22023":
                raise
            return False  # the server is a copy that lagged, and has no such transaction
        return None if status == "in progress" else bool(status == "committed")

    def rollback(self) -> None:
        """Also what a function has left open. Raises nothing for a connection that is lost."""
        connection, session = connections[self._alias], self._session
        connection.run_on_commit.clear()
        if session is not None:
            with suppress(psycopg.Error):
                session.rollback()
        if connection.in_atomic_block and (session is None or session.closed):
            connection.close()  # else Django would open another one at once
        if connection.in_atomic_block:
            connection.savepoint_ids.clear()
            del connection.atomic_blocks[1:]
            connection.set_rollback(True)
        self._leave()

    def close(self) -> None:
        """The next `begin` opens another connection."""
        if self._atomic is not None:
            self.rollback()
        connections[self._alias].close()

    def cancel(self) -> None:
        """Ends the statement that is being run. Any thread may call it; raises nothing."""
        session = self._session
        if session is not None:
            with suppress(psycopg.Error, OSError):
                session.cancel_safe(timeout=_CANCEL_S)

    def failure(self, error: BaseException, *, is_of_function: bool = False) -> Failure:
        """What was raised by the function or by a call of a port, as a value. A lost session is an outage, unless the
        function has closed it. While it lives, an outage of another server is a failure of the function."""
        found, session = self._failure(error), self._session
        if not is_of_function or session is None or session.broken:
            return found
        if isinstance(found, blame.Disconnected | blame.KafkaUnavailable):
            return blame.FunctionRaised(found.text)
        if isinstance(found, blame.StatementRefused):
            is_here = session.info.transaction_status == TransactionStatus.INERROR
            return replace(found, is_elsewhere=not is_here)
        return found

    def _failure(self, error: BaseException) -> Failure:
        text = _text(error)
        if isinstance(error, CancelledError):
            return blame.FunctionRaised(text)  # of async code that the function has called
        if not isinstance(error, Exception) or isinstance(error, MemoryError):
            return blame.Ending(text)
        if isinstance(error, CommitInDoubt):
            return blame.Disconnected(_text(error.__cause__ or error))
        if isinstance(error, NotYet):
            return blame.Postponed(text, error.until_s, error.retry_s)
        if isinstance(error, NotAvailable):
            return blame.KafkaUnavailable(text)
        if remedy := _remedy(error):
            return blame.Alike(text, remedy)
        if isinstance(error, Error | psycopg.Error):
            return _of_database(error, text)
        return blame.FunctionRaised(text)

    def _leave(self) -> None:
        atomic, self._atomic, self._session = self._atomic, None, None
        if atomic is not None:
            atomic.__exit__(None, None, None)


def _ms(seconds: float) -> str:
    return str(max(1, int(seconds * 1000)))


def _text(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception as broken:
        text = f"its text cannot be read ({type(broken).__name__})"
    return f"{type(error).__name__}: {text}"


def _of_database(error: BaseException, text: str) -> Failure:
    found = error if isinstance(error, psycopg.Error) else error.__cause__
    if not isinstance(found, psycopg.Error):
        return blame.FunctionRaised(text)  # Django's own
    if found.sqlstate is not None:
        return blame.StatementRefused(found.sqlstate, text)
    if isinstance(found, psycopg.OperationalError | psycopg.InterfaceError):
        return blame.Disconnected(text)
    return blame.FunctionRaised(text)  # a value that the client cannot send


def _remedy(error: Exception) -> str:
    """For what every message would raise; empty: another one might not."""
    if isinstance(error, RuntimeError) and "durable atomic block" in str(error):
        return "Leave durable=True out: the function runs in the consumer's transaction, which is durable"
    if isinstance(error, ConnectionDoesNotExist):
        return "Name an alias that DATABASES has"
    if isinstance(error, StashOutsideTransaction):
        return "Stash with the alias of the consumer, or open a transaction on the other one"
    if isinstance(error, InvalidConsumer):
        return "Write it with def and without yield, and call async code by async_to_sync"
    if isinstance(error, ImportError):
        return "Install the module, or correct the import"
    if isinstance(error, ImproperlyConfigured):
        return "Correct the settings"
    return ""
