"""What the proof of delivery reads and writes in PostgreSQL: ids of the table and of dead letters, the number of the
database, and the last finding."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from psycopg import sql

from outbox.edges.postgres.common.table import connect_plainly, identifier

_ROWS_AT_ONCE = 50_000


def store(parameters: Mapping[str, Any], table: str, finding: Mapping[str, Any]) -> bool:
    """Into the row of the companion table; False where no harvester has made one yet."""
    with connect_plainly(parameters, autocommit=True) as connection:
        done = connection.execute(
            sql.SQL("/* verified */ UPDATE {state} SET verification = %s WHERE id = 1").format(state=_state(table)),
            [json.dumps(finding)],
        )
        return done.rowcount == 1


def database(parameters: Mapping[str, Any], table: str) -> str:
    """Its UUID, which sinks note in their entries; empty before the first harvester."""
    with connect_plainly(parameters, autocommit=True) as connection:
        shown = _state(table)
        known = connection.execute("/* verify */ SELECT to_regclass(%s)", [shown.as_string(connection)]).fetchone()
        if not known or known[0] is None:
            return ""
        row = connection.execute(
            sql.SQL("/* database */ SELECT database FROM {state} WHERE id = 1").format(state=shown)
        ).fetchone()
    return str(row[0]) if row else ""


def ids(parameters: Mapping[str, Any], table: str) -> Iterator[list[int]]:
    """Of what waits, in portions."""
    yield from _read(parameters, "SELECT id FROM {}", table)


def dead_ids(parameters: Mapping[str, Any], table: str) -> Iterator[list[int]]:
    """Of the dead letters, as they were in the table."""
    yield from _read(parameters, "SELECT record_id FROM {}", f"{table}_dead")


def _read(parameters: Mapping[str, Any], query: str, name: str) -> Iterator[list[int]]:
    """Nothing where there is no such table."""
    with connect_plainly(parameters, autocommit=False) as connection, connection.cursor("outbox_verify") as cursor:
        shown = identifier(name).as_string(connection)
        known = connection.execute("/* verify */ SELECT to_regclass(%s) IS NOT NULL", [shown]).fetchone()
        if not known or not known[0]:
            return
        cursor.itersize = _ROWS_AT_ONCE
        cursor.execute(sql.SQL("/* verify */ " + query).format(identifier(name)))
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            yield [row[0] for row in rows]


def _state(table: str) -> sql.Identifier:
    return identifier(f"{table}_state")
