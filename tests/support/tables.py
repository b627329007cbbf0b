"""Outbox tables made by hand, in ours and in the goharvest-compatible layout, and rows in them as other programs write
them."""

from importlib import import_module

import psycopg
from psycopg import sql

GOHARVEST = """
CREATE TABLE {table} (
  id bigserial PRIMARY KEY,
  create_time timestamptz NOT NULL DEFAULT now(),
  kafka_topic varchar(249) NOT NULL,
  kafka_key varchar(100) NOT NULL,
  kafka_value varchar(10000),
  kafka_header_keys text[] NOT NULL DEFAULT '{{}}',
  kafka_header_values text[] NOT NULL DEFAULT '{{}}',
  leader_id uuid
)
"""


def create_table(connection: psycopg.Connection, name: str = "outbox", *, binary: bool = True) -> None:
    table = sql.Identifier(*name.split(".", 1))
    connection.execute(sql.SQL(GOHARVEST).format(table=table))
    if binary:
        ours = (
            "ALTER TABLE {table} ADD kafka_value_binary bytea, ALTER kafka_value TYPE text, ALTER kafka_key TYPE text"
        )
        connection.execute(sql.SQL(ours).format(table=table))


def create_companions(connection: psycopg.Connection) -> None:
    """Those of a table called `outbox`, as the migration makes them."""
    connection.execute(import_module("outbox.migrations.0001_initial").COMPANIONS)


def insert(connection: psycopg.Connection, topic: str, keys: list[str], *, name: str = "outbox") -> list[int]:
    """One row per key, whose value is its place in the list."""
    table = sql.Identifier(*name.split(".", 1))
    rows = connection.execute(
        sql.SQL(
            "INSERT INTO {} (kafka_topic, kafka_key, kafka_value) "
            "SELECT %s, key, n::text FROM unnest(%s::text[]) WITH ORDINALITY AS t(key, n) ORDER BY t.n RETURNING id"
        ).format(table),
        [topic, keys],
    )
    return sorted(row[0] for row in rows)
