"""Which lane a key or a row belongs to, as in `edges.postgres.exactly_once.reader.lane_of_row`."""

from __future__ import annotations

from typing import Any

from outbox.edges.postgres.common.table import identifier


def count(cursor: Any, table: str) -> int | None:
    """None before the first harvester."""
    cursor.execute(f"SELECT lanes FROM {identifier(f'{table}_state').as_string()}")
    row = cursor.fetchone()
    return int(row[0]) if row else None


def of_key(cursor: Any, key: str, lanes: int) -> int:
    cursor.execute("SELECT (hashtextextended(%s, 0) & 9223372036854775807) %% %s", [key, lanes])
    return int(cursor.fetchone()[0])


def template(lanes: int, *, keep_empty_key: bool) -> str:
    """For Django's `Func` of a key and the id of a record."""
    number = "hashtextextended(k, 0)" if keep_empty_key else "CASE WHEN k = '' THEN r ELSE hashtextextended(k, 0) END"
    return f"(SELECT ({number} & 9223372036854775807) %%%% {lanes} FROM (VALUES (%(expressions)s)) AS t(k, r))"
