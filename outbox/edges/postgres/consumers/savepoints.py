"""The transaction of a consumer in a test: a savepoint of the test's transaction, which is never committed.

Where a test has no transaction, it is one of its own. What would end the test's transaction is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from django.db import connections, transaction

from outbox.edges.postgres.consumers.transactions import Transaction

_ENDS = re.compile(
    r"\s*(?:/\*.*?\*/\s*)*(COMMIT|END|ABORT|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b))\b",
    re.IGNORECASE | re.DOTALL,
)


class TransactionEnded(Exception):
    """The function asks for the end of the transaction."""


class SavepointTransaction(Transaction):
    """`ended` is the statement with which the function has asked for the end; empty: it has not."""

    def __init__(self, alias: str, *, consumer: str) -> None:
        super().__init__(alias, consumer=consumer, session_timeout_s=0.0)
        self.ended = ""
        self._before: list[Any] = []
        self._guards = ExitStack()

    def begin(self, timeout_s: float = 0.0) -> Any:
        """Sets no time limits, which would last as long as the test."""
        connection: Any = connections[self._alias]
        connection.ensure_connection()
        self._before = list(connection.run_on_commit)
        self._atomic = transaction.atomic(using=self._alias, durable=True)
        self._atomic.__enter__()
        self._session = connection.connection
        self._savepoints, self._blocks = len(connection.savepoint_ids), len(connection.atomic_blocks)
        self._guards.enter_context(connection.execute_wrapper(self._guard))
        connection._close = lambda: None  # Django marks it as closed, and the test goes on with it
        self._guards.callback(delattr, connection, "_close")
        return connection

    def xid(self) -> int:
        with connections[self._alias].cursor() as cursor:
            cursor.execute("/* transaction */ SELECT pg_current_xact_id()::text::bigint")
            return int(cursor.fetchone()[0])

    def problem(self) -> str:
        return f"the function ran {self.ended}" if self.ended else super().problem()

    def commit(self) -> list[Callable[[], None]]:
        """Deferred constraints are checked as by COMMIT."""
        connection = connections[self._alias]
        before: Any = connection.savepoint()
        with connection.cursor() as cursor:
            cursor.execute("/* constraints */ SET CONSTRAINTS ALL IMMEDIATE")
        connection.savepoint_rollback(before)  # they are deferred again
        hooks = self.new_hooks()
        self._leave()
        return hooks

    def new_hooks(self) -> list[Callable[[], None]]:
        """Takes those of the function, and of its hooks, off the connection. Those of the test stay."""
        connection = connections[self._alias]
        found = [hook[1] for hook in connection.run_on_commit[len(self._before) :]]
        connection.run_on_commit = list(self._before)
        return found

    def rollback(self) -> None:
        connection = connections[self._alias]
        if self._atomic is not None:
            connection.closed_in_transaction = False
            del connection.savepoint_ids[self._savepoints :]
            del connection.atomic_blocks[self._blocks :]
            connection.set_rollback(True)
        connection.run_on_commit = list(self._before)
        self._leave()

    def _leave(self) -> None:
        self._guards.close()
        super()._leave()

    def _guard(self, execute: Any, statement: Any, params: Any, many: bool, context: Any) -> Any:
        if found := _ENDS.match(str(statement)):
            self.ended = " ".join(found[1].upper().split())
            raise TransactionEnded(f"{self.ended} is refused: it would end the transaction")
        return execute(statement, params, many, context)
