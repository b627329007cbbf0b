"""What waits in the table: for metrics and commands, never for decisions.

Cheap on a table of any size: rows are counted up to a limit, and estimated beyond it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from outbox.edges.postgres.common import table

COUNT_MAX = 100_000
# Ids are drawn before create_time's order is settled: the oldest record is among the first few.
OLDEST_ROWS = 100


@dataclass(frozen=True, slots=True)
class Backlog:
    records: int
    is_estimate: bool
    oldest_age_s: float
    """By the database's clock; 0 when nothing waits. Of records that have a time."""
    stashed_total: int
    """Inserted since the server's statistics began, as PostgreSQL counts: also what was rolled back."""
    deleted_total: int = 0
    """Likewise."""


def backlog(connection: psycopg.Connection[Any], name: str) -> Backlog:
    identifier = table.identifier(name)
    relation = sql.Literal(identifier.as_string(connection))
    row = connection.execute(
        sql.SQL(
            "/* backlog */ SELECT (SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT %s) AS waiting), "
            "(SELECT extract(epoch FROM clock_timestamp() - min(create_time))::float8 FROM "
            "(SELECT create_time FROM {table} ORDER BY id LIMIT %s) AS oldest WHERE isfinite(create_time)), "
            "pg_stat_get_tuples_inserted(to_regclass({relation})), pg_stat_get_live_tuples(to_regclass({relation})), "
            "pg_stat_get_tuples_deleted(to_regclass({relation}))"
        ).format(table=identifier, relation=relation),
        [COUNT_MAX + 1, OLDEST_ROWS],
    ).fetchone()
    assert row is not None
    counted, age_s, stashed, live, deleted = row
    is_estimate = counted > COUNT_MAX
    records = max(COUNT_MAX, live or 0) if is_estimate else counted
    return Backlog(records, is_estimate, max(0.0, age_s or 0.0), int(stashed or 0), int(deleted or 0))


def count_rows(connection: psycopg.Connection[Any], name: str) -> int | None:
    """Of a small companion table; None where it does not exist."""
    identifier = table.identifier(name)
    found = connection.execute("SELECT to_regclass(%s)", [identifier.as_string(connection)]).fetchone()
    if found is None or found[0] is None:
        return None
    row = connection.execute(
        sql.SQL("/* count */ SELECT count(*) FROM (SELECT 1 FROM {} LIMIT {}) AS r").format(identifier, COUNT_MAX)
    ).fetchone()
    return int(row[0]) if row else 0
