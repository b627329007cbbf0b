"""Outbox tables and streams for the tests of this folder."""

import uuid
from dataclasses import dataclass

import psycopg
from psycopg import sql


@dataclass
class Outbox:
    url: str
    table: str

    def run(self, text, *given):
        with psycopg.connect(self.url, autocommit=True) as connection:
            names = {name: sql.Identifier(self.table + suffix) for name, suffix in SUFFIXES.items()}
            cursor = connection.execute(sql.SQL(text).format(**names), given)
            return cursor.fetchall() if cursor.description else cursor.rowcount

    def insert(self, topic, count, keys=7):
        self.run(
            "INSERT INTO {table} (kafka_topic, kafka_key, kafka_value) "
            "SELECT %s, 'k' || (n %% %s), 'value ' || n FROM generate_series(0, %s - 1) AS t(n) ORDER BY n",
            topic, keys, count,
        )  # fmt: skip

    def count(self):
        return self.run("SELECT count(*) FROM {table}")[0][0]


SUFFIXES = {"table": "", **{name: f"_{name}" for name in ("state", "spark", "lane", "purged", "hold")}}


def make_outbox(url):
    """A table of its own beside those that migrations made: the same columns, defaults and companions."""
    name = f"o{uuid.uuid4().hex[:8]}"
    with psycopg.connect(url, autocommit=True) as connection:
        for suffix in SUFFIXES.values():
            connection.execute(
                sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL)").format(
                    sql.Identifier(name + suffix), sql.Identifier("outbox" + suffix)
                )
            )
        sequence = sql.Identifier(f"{name}_id_seq")
        connection.execute(sql.SQL("CREATE SEQUENCE {} OWNED BY {}.id").format(sequence, sql.Identifier(name)))
        connection.execute(
            sql.SQL("ALTER TABLE {} ALTER id SET DEFAULT nextval({})").format(
                sql.Identifier(name), sql.Literal(f"{name}_id_seq")
            )
        )
    return Outbox(url, name)
