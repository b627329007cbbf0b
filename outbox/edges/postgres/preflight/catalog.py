"""What the catalogue says of a table, on Django's cursor; the table by its quoted name."""

from __future__ import annotations

from typing import Any


def exists(cursor: Any, quoted: str) -> bool:
    cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [quoted])
    return bool(cursor.fetchone()[0])


def columns(cursor: Any, quoted: str) -> dict[str, str]:
    """Name → type."""
    cursor.execute(
        "SELECT attname, atttypid::regtype::text FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
        [quoted],
    )
    return dict(cursor.fetchall())


def time_column(cursor: Any, quoted: str) -> tuple[bool, bool] | None:
    """Whether `create_time` is NOT NULL, and whether it has a default; None where it is missing."""
    cursor.execute(
        "SELECT attnotnull, atthasdef FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attname = 'create_time' AND NOT attisdropped",
        [quoted],
    )
    found: tuple[bool, bool] | None = cursor.fetchone()
    return found


def valid_constraints(cursor: Any, quoted: str) -> set[str]:
    cursor.execute("SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND convalidated", [quoted])
    return {row[0] for row in cursor.fetchall()}


def sequence(cursor: Any, quoted: str) -> tuple[str, str, str] | None:
    """Schema and name of the table, and the sequence that draws its ids; None where one of both is missing."""
    cursor.execute(
        "SELECT n.nspname, c.relname, pg_get_serial_sequence(%s, 'id') FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)",
        [quoted, quoted],
    )
    schema, table, name = cursor.fetchone() or ("", "", None)
    return None if name is None else (schema, table, name)
