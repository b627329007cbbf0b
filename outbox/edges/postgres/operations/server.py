"""What a look at the server tells: its version and state, the right on the sequence, the topics of the table, the
time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from outbox.edges.postgres.common.table import identifier

Connection = psycopg.Connection[Any]


class Server(NamedTuple):
    version: str
    is_standby: bool
    user: str
    database: str
    fsync: str
    read_only: str
    """As `default_transaction_read_only` says it."""
    major: int


def server(connection: Connection) -> Server:
    row = connection.execute(
        "SELECT current_setting('server_version'), pg_is_in_recovery(), current_user, current_database(), "
        "current_setting('fsync'), current_setting('default_transaction_read_only'), "
        "current_setting('server_version_num')::int / 10000"
    ).fetchone()
    assert row is not None
    return Server(*row)


def unreadable_sequence(connection: Connection, table: str) -> str:
    """The sequence that draws the ids, where this user may not SELECT on it; else empty."""
    sequence = _value(connection, "SELECT pg_get_serial_sequence(%s, 'id')", identifier(table).as_string())
    if sequence and not _value(connection, "SELECT has_sequence_privilege(%s, 'SELECT')", sequence):
        return str(sequence)
    return ""


def _value(connection: Connection, statement: str, argument: str) -> Any:
    row = connection.execute(statement, [argument]).fetchone()
    return row[0] if row else None


def topics_at_the_ends(connection: Connection, table: str, rows: int) -> set[str]:
    """Of the records at both ends of the table: DISTINCT would read it all."""
    found = connection.execute(
        sql.SQL(
            "/* topics */ (SELECT kafka_topic FROM {table} ORDER BY id LIMIT {rows}) UNION "
            "(SELECT kafka_topic FROM {table} ORDER BY id DESC LIMIT {rows})"
        ).format(table=identifier(table), rows=rows)
    ).fetchall()
    return {row[0] for row in found}


def common_topics(cursor: Any, quoted: str) -> list[str]:
    """The most common topics of a table by its quoted name, as its statistics have them."""
    cursor.execute(
        "SELECT unnest(s.most_common_vals::text::text[]) FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " JOIN pg_stats s ON s.schemaname = n.nspname AND s.tablename = c.relname AND s.attname = 'kafka_topic'"
        " WHERE c.oid = to_regclass(%s)",
        [quoted],
    )
    return [row[0] for row in cursor.fetchall()]


def set_locally(cursor: Any, settings: Mapping[str, str]) -> None:
    """Until the transaction ends."""
    for name, value in settings.items():
        cursor.execute("SELECT set_config(%s, %s, true)", [name, value])


def now(cursor: Any) -> datetime:
    """By the database's clock."""
    cursor.execute("SELECT clock_timestamp()")
    found: datetime = cursor.fetchone()[0]
    return found
