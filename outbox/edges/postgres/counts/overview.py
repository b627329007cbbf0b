"""What the daemon asks about the table as a whole: is it the right one, how much waits. Never during harvesting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg
from psycopg import sql

from outbox.documents import page
from outbox.edges.postgres.at_least_once.marks import COLUMNS, WrongTable
from outbox.edges.postgres.common import table
from outbox.exceptions import NotAvailable

BINARY = "kafka_value_binary"
STATEMENT_TIMEOUT_S = 10.0
BACKLOG_MAX = 100_000  # counted no further: a status line must stay cheap


class DatabaseUnreachable(NotAvailable):
    """PostgreSQL does not answer: worth another attempt."""


@contextmanager
def connected(alias: str, connect: Callable[..., Any] = table.connect_bounded) -> Iterator[psycopg.Connection[Any]]:
    """A connection for a few questions; an outage surfaces as `DatabaseUnreachable`."""
    try:
        with closing(_connect(alias, connect)) as connection:
            yield connection
    except psycopg.OperationalError as error:
        reason = " ".join(str(error).split())
        raise DatabaseUnreachable(f"This process cannot reach PostgreSQL of the alias {alias!r}: {reason}") from error


def _connect(alias: str, connect: Callable[..., Any] = table.connect_bounded) -> psycopg.Connection[Any]:
    found: psycopg.Connection[Any] = connect(
        table.parameters(alias), statement_timeout_s=STATEMENT_TIMEOUT_S, application_name=table.BESIDE
    )
    return found


def check_columns(connection: psycopg.Connection[Any], alias: str, name: str, columns: Sequence[str] = COLUMNS) -> None:
    rows = connection.execute(
        "/* columns */ SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 "
        "AND NOT attisdropped",
        [table.identifier(name).as_string(connection)],
    ).fetchall()
    found = {row[0] for row in rows}
    if not found:
        raise WrongTable(
            f"The table {name!r} does not exist on the alias {alias!r}. "
            f"Run: python manage.py migrate outbox --database {alias}"
        )
    if missing := [column for column in columns if column not in found]:
        raise WrongTable(
            f"The table {name!r} on the alias {alias!r} lacks the columns {', '.join(missing)}. Check TABLE, and "
            f"compare the table with {page('table')}."
        )


def may_lack_a_time(connection: psycopg.Connection[Any], name: str) -> bool:
    """Whether a writer may give a record NULL for its create_time."""
    row = connection.execute(
        "/* columns */ SELECT NOT attnotnull FROM pg_attribute WHERE attrelid = to_regclass(%s) "
        "AND attname = 'create_time' AND NOT attisdropped",
        [table.identifier(name).as_string(connection)],
    ).fetchone()
    return bool(row and row[0])


class Overview:
    """Counts over the table on a connection of its own."""

    most = BACKLOG_MAX

    def __init__(self, alias: str, name: str) -> None:
        self._alias = alias
        self._connection: psycopg.Connection[Any] | None = None
        identifier = table.identifier(name)
        self._newest = sql.SQL("/* newest */ SELECT max(id) FROM {}").format(identifier)
        self._waiting = sql.SQL(
            "/* backlog */ SELECT count(*) FROM (SELECT 1 FROM {} WHERE id <= %s LIMIT %s) AS waiting"
        ).format(identifier)

    def newest(self) -> int:
        return self._ask(self._newest)

    def waiting(self, until: int = 2**63 - 1) -> int:
        """Records with an id up to `until`, counted up to BACKLOG_MAX."""
        return self._ask(self._waiting, until, BACKLOG_MAX)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, statement: sql.Composed, *arguments: int) -> int:
        try:
            if self._connection is None:
                self._connection = _connect(self._alias)
            row = self._connection.execute(statement, arguments).fetchone()
        except psycopg.OperationalError as error:
            self.close()
            raise DatabaseUnreachable(" ".join(str(error).split())) from error
        return int(row[0] or 0) if row else 0
