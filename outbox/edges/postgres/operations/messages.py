"""Counts of held messages and dead letters of consumers, for people and metrics. Each count ends at a limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import sql

from outbox.core.consumers.shown import COUNT_MAX, MessageCounts
from outbox.edges.postgres.common.table import identifier

BEHIND_MAX = 1_000

_COUNTS = (
    "/* held_counts */ SELECT name, {held}, {undecided}, {dead} "
    "FROM unnest(%(consumers)s::text[]) WITH ORDINALITY AS c (name, at) ORDER BY at"
)
_COUNT = "(SELECT count(*) FROM (SELECT FROM {table} AS h WHERE h.consumer = name AND {condition} LIMIT {limit}) AS r)"
_CONDITIONS = {
    "held": "h.died_at IS NULL",
    "undecided": "h.died_at IS NULL AND h.next_try IS NULL AND h.reason <> 'waiting' AND h.wanted = ''",
    "dead": "h.died_at IS NOT NULL",
}
_BEHIND = (
    "(SELECT count(*) FROM (SELECT FROM {table} AS b WHERE b.consumer = {table}.consumer AND b.topic = {table}.topic "
    "AND b.partition = {table}.partition AND md5(b.key) = md5({table}.key) AND b.key = {table}.key "
    "AND b.died_at IS NULL AND b.id > {table}.id LIMIT {limit}) AS r)"
)


def counts_statement(table: str) -> str:
    """Its rows are for `counts_of`. It takes the list `consumers`."""
    name, limit = identifier(f"{table}_held"), sql.Literal(COUNT_MAX)
    parts = {
        part: sql.SQL(_COUNT).format(table=name, condition=sql.SQL(condition), limit=limit)
        for part, condition in _CONDITIONS.items()
    }
    return sql.SQL(_COUNTS).format(**parts).as_string()


def counts_of(rows: Sequence[tuple[Any, ...]]) -> dict[str, MessageCounts]:
    return {name: MessageCounts(held, undecided, dead) for name, held, undecided, dead in rows}


def counts(cursor: Any, table: str, consumers: Sequence[str]) -> dict[str, MessageCounts]:
    """`cursor`: of psycopg, or of Django."""
    cursor.execute(counts_statement(table), {"consumers": list(consumers)})
    return counts_of(cursor.fetchall())


def behind_template(table: str) -> str:
    """How many messages wait behind a row, at most `BEHIND_MAX`: for an expression in a query on the table."""
    given = {"table": identifier(f"{table}_held"), "limit": sql.Literal(BEHIND_MAX)}
    return sql.SQL(_BEHIND).format(**given).as_string().replace("%", "%%")
