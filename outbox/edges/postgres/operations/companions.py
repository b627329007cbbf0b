"""What the companion tables say about the outbox, for people."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from outbox.edges.postgres.common.table import identifier

Connection = psycopg.Connection[Any]
_STATE = (
    "database_uuid",
    "lanes",
    "lanes_wanted",
    "resize_to",
    "resize_note",
    "lease_mode",
    "lease_owner",
    "lease_seen_s",
)


def exists(cursor: Any, name: str) -> bool:
    """`cursor`: of psycopg, or of Django."""
    cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [identifier(name).as_string()])
    row = cursor.fetchone()
    return bool(row and row[0])


def state(connection: Connection, table: str) -> dict[str, Any] | None:
    """None in a table without companions, or before the first harvester."""
    name = f"{table}_state"
    if not exists(connection.cursor(), name):
        return None
    row = connection.execute(
        sql.SQL(
            "/* state */ SELECT database::text, lanes, lanes_wanted, resize_to, resize_note, lease_mode, lease_owner, "
            "CASE WHEN isfinite(lease_time) THEN extract(epoch FROM clock_timestamp() - lease_time)::float8 END FROM {}"
        ).format(identifier(name))
    ).fetchone()
    return None if row is None else dict(zip(_STATE, row, strict=True))


def lanes(connection: Connection, table: str) -> list[tuple[Any, ...]]:
    """Number, name of the owner, seconds since its last heartbeat, and the last batch that was purged."""
    if not exists(connection.cursor(), f"{table}_lane"):
        return []
    return connection.execute(
        sql.SQL(
            "/* lanes */ SELECT lane, owner_name, extract(epoch FROM clock_timestamp() - heartbeat)::float8, batch "
            "FROM {lane} FULL JOIN (SELECT lane, max(batch) AS batch FROM {purged} GROUP BY lane) AS p USING (lane) "
            "ORDER BY lane"
        ).format(lane=identifier(f"{table}_lane"), purged=identifier(f"{table}_purged"))
    ).fetchall()


def holds_by_reason(connection: Connection, table: str) -> dict[str, int]:
    if not exists(connection.cursor(), f"{table}_hold"):
        return {}
    text = sql.SQL("/* holds */ SELECT reason, count(*) FROM {} GROUP BY reason ORDER BY reason")
    return dict(connection.execute(text.format(identifier(f"{table}_hold"))).fetchall())


def last_verification(cursor: Any, table: str) -> Any:
    """As Django's cursor has it: text or an object. None where there was none, or where the table of another version
    has no place for one."""
    name = f"{table}_state"
    if not exists(cursor, name):
        return None
    cursor.execute(f"SELECT to_jsonb(s) -> 'verification' FROM {identifier(name).as_string()} AS s WHERE id = 1")
    row = cursor.fetchone()
    return row[0] if row else None
