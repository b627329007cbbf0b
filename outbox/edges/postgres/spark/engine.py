"""What the engine asks before it begins."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from outbox.edges.postgres.common.table import identifier

Connection = psycopg.Connection[Any]


def exists(connection: Connection, name: str) -> bool:
    row = connection.execute(
        "/* tables */ SELECT to_regclass(%s) IS NOT NULL", [identifier(name).as_string()]
    ).fetchone()
    return bool(row and row[0])


def mode(connection: Connection, table: str) -> str | None:
    """In which mode the table is harvested, as its state row has it; None without that row."""
    found: str | None = _of_state(connection, "/* lease */ SELECT lease_mode FROM {}", table)
    return found


def database(connection: Connection, table: str) -> UUID | None:
    """The number of the database; None without the state row."""
    found: UUID | None = _of_state(connection, "/* database */ SELECT database FROM {}", table)
    return found


def _of_state(connection: Connection, text: Any, table: str) -> Any:
    row = connection.execute(sql.SQL(text).format(identifier(f"{table}_state"))).fetchone()
    return row[0] if row else None
