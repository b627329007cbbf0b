"""Holds, as the Spark source respects them: the statements on `<TABLE>_hold`. Operators and other delivery modes place
holds; the Spark source places none.

When it marks a batch, the source leaves out records that an operator has paused or edits, and records that another
mode holds as rejected or poison. It sends a rejected record again only after an operator has asked for that: a second
rejection would stop its whole micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from outbox.core.holds.values import BY_OPERATORS, OF_RECORDS
from outbox.edges.postgres.common.table import identifier

Connection = psycopg.Connection[Any]

_SHOWN_MAX = 5
_OPERATORS, _REASONS = (", ".join(map(repr, reasons)) for reasons in (BY_OPERATORS, OF_RECORDS))
# A hold ends with the record at its head. Another record may have got the same id since.
_IS_THERE = (
    "EXISTS (SELECT FROM {table} AS head WHERE head.id = h.record_id "
    "AND coalesce(head.create_time = h.stashed_at, true))"
)
_IN_FORCE = f"(h.reason IN ({_OPERATORS}) OR h.wanted <> 'retry' AND (h.record_id IS NULL OR " + _IS_THERE + "))"
_KEEPS_EMPTY_KEY = "(SELECT coalesce(keep_empty_key, false) FROM {state})"
_LANE = (
    "((CASE WHEN o.kafka_key = '' AND NOT " + _KEEPS_EMPTY_KEY + " THEN o.id "
    "ELSE hashtextextended(o.kafka_key, 0) END & 9223372036854775807) %% (SELECT lanes FROM {state}))"
)
# `unit` is composed as the migration composes it. It has an index: many holds cost a record no more than one.
_CONCERNS = (
    "h.unit = ANY(ARRAY[md5('lane ' || " + _LANE + "), md5('topic ' || o.kafka_topic), "
    "md5(CASE WHEN o.kafka_key = '' THEN 'record ' || o.id "
    "ELSE 'key ' || length(o.kafka_topic) || ' ' || o.kafka_topic || ' ' || o.kafka_key END)])"
)
# With keep_empty_key, an empty key is held like any other, though its holds are those of records. One check a
# statement.
_EMPTY_KEY_IS_HELD = (
    "(o.kafka_key = '' AND o.kafka_topic IN (SELECT h.topic FROM {hold} AS h WHERE h.key = '' AND "
    + _KEEPS_EMPTY_KEY + " AND " + _IN_FORCE + "))"
)  # fmt: skip
FREE = (
    " AND NOT EXISTS (SELECT FROM {hold} AS h WHERE " + _IN_FORCE + " AND " + _CONCERNS + ")"
    " AND NOT " + _EMPTY_KEY_IS_HELD
)  # fmt: skip
"""For a statement on the table under the name `o`."""
_LIFT = (
    f"/* hold */ DELETE FROM {{hold}} AS h WHERE reason IN ({_REASONS}) AND record_id IS NOT NULL AND NOT " + _IS_THERE
)
# A hold is confirmed if it covers no marked record, neither of the last batch nor of the one before it.
_CONFIRM = (
    "/* confirm */ UPDATE {hold} AS h SET confirmed_by = array(SELECT generate_series(0, s.lanes - 1)) "
    f"FROM {{state}} AS s, {{spark}} AS k WHERE k.owner = %(owner)s AND h.reason IN ({_OPERATORS}) "
    "AND NOT h.confirmed_by @> array(SELECT generate_series(0, s.lanes - 1)) "
    "AND (k.purged OR NOT EXISTS (SELECT FROM {table} AS o WHERE o.id BETWEEN k.lowest AND k.highest "
    "AND o.leader_id = k.leader_id AND " + _CONCERNS + ")) "
    "AND (k.prior_leader_id IS NULL OR NOT EXISTS (SELECT FROM {table} AS o "
    "WHERE o.id BETWEEN k.prior_lowest AND k.prior_highest AND o.leader_id = k.prior_leader_id AND " + _CONCERNS + "))"
)
_SCOPES = (
    "/* holds */ SELECT h.reason || ': ' || CASE WHEN h.topic = '' THEN 'lane ' || h.lane "
    "WHEN h.key IS NULL THEN 'topic ' || h.topic WHEN h.key = '' THEN h.topic || ' #' || h.record_id "
    "ELSE h.topic || '[' || h.key || ']' END FROM {hold} AS h WHERE " + _IN_FORCE + " ORDER BY h.id"
)


class Holding:
    """Holds of one table. The table may be of an older release and have none."""

    def __init__(self, table: str) -> None:
        parts = {name: identifier(table + suffix) for name, suffix in _SUFFIXES.items()}
        self._name = parts["hold"].as_string()
        self._lift, self._confirm, self._scopes, self._any = (
            sql.SQL(text).format(**parts).as_string()
            for text in (_LIFT, _CONFIRM, _SCOPES, "/* holds */ SELECT EXISTS (SELECT FROM {hold})")
        )
        self._exists = False

    def look(self, connection: Connection) -> bool:
        """Whether there are any."""
        row = self._is_there(connection) and connection.execute(self._any).fetchone()
        return bool(row and row[0])

    def settle(self, connection: Connection, owner: str) -> None:
        """Lift holds whose record is gone. Confirm the holds of operators that the source respects: call this when the
        next mark will leave their records out."""
        connection.execute(self._lift)
        connection.execute(self._confirm, {"owner": owner})

    def scopes(self, connection: Connection) -> Sequence[str]:
        """The holds as texts for people."""
        return [row[0] for row in connection.execute(self._scopes)] if self._is_there(connection) else []

    def _is_there(self, connection: Connection) -> bool:
        if not self._exists:
            row = connection.execute("/* holds */ SELECT to_regclass(%s) IS NOT NULL", [self._name]).fetchone()
            self._exists = bool(row and row[0])
        return self._exists


_SUFFIXES = {"table": "", "hold": "_hold", "state": "_state", "spark": "_spark"}


def rejected(scopes: Sequence[str]) -> int:
    """The number of holds that no operator has placed."""
    return sum(scope.startswith(tuple(f"{reason}: " for reason in OF_RECORDS)) for scope in scopes)


def shown(scopes: Sequence[str]) -> str:
    more = len(scopes) - _SHOWN_MAX
    return "; ".join(scopes[:_SHOWN_MAX]) + (f"; and {more} more" if more > 0 else "")
