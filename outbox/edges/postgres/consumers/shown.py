"""The statement on `<TABLE>_partition`: what a process shows of its partitions. And the counts of held messages.

It has a connection of its own, each wait of which is bounded here: a pooler of transactions may be between, which keeps
no settings. It is no transaction, so a process that stands still holds no lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql

from outbox.core.consumers.shown import MessageCounts, ShownPartition
from outbox.edges.postgres.common.session import BoundedConnection, StatementOverdue, close_quietly
from outbox.edges.postgres.common.table import identifier, parameters
from outbox.edges.postgres.consumers.owners import SHOW_LIFE
from outbox.edges.postgres.operations import messages

TIMEOUT_S = 2.0
NAME = "outbox partitions"
_REASON_CHARS = 1_000
_CONNECT = {
    "connect_timeout": 4,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
# In one order, so two processes that write the same rows do not wait for each other.
_WRITE = """/* partition */ INSERT INTO {partition} AS p
(consumer, topic, partition, owner, seen_at, state, reason, stable_offset, lag, oldest_age_s, handled, rate)
SELECT %(consumer)s::text, given.topic, given.partition, %(owner)s::text, clock_timestamp(), given.state, given.reason,
given.stable_offset, given.lag, given.oldest_age_s, given.handled, given.rate
FROM unnest(%(topics)s::text[], %(partitions)s::integer[], %(states)s::text[], %(reasons)s::text[],
%(stable_offsets)s::bigint[], %(lags)s::bigint[], %(ages)s::double precision[], %(handled)s::bigint[],
%(rates)s::double precision[])
AS given (topic, partition, state, reason, stable_offset, lag, oldest_age_s, handled, rate)
ORDER BY given.topic, given.partition
ON CONFLICT (consumer, topic, partition) DO UPDATE SET owner = EXCLUDED.owner, seen_at = EXCLUDED.seen_at,
state = EXCLUDED.state, reason = EXCLUDED.reason, stable_offset = EXCLUDED.stable_offset, lag = EXCLUDED.lag,
oldest_age_s = EXCLUDED.oldest_age_s, handled = EXCLUDED.handled, rate = EXCLUDED.rate"""


class PartitionRows:
    """Of the consumers of one database. One thread calls it."""

    def __init__(self, alias: str, table: str, *, owner: str, life: str) -> None:
        """`life` is the name under which the process owns partitions: this connection shows that it lives."""
        self._alias, self._owner, self._life = alias, owner, life
        self._write = sql.SQL(_WRITE).format(partition=identifier(f"{table}_partition")).as_string()
        self._counts = messages.counts_statement(table)
        self._connection: BoundedConnection | None = None

    def write(self, consumer: str, rows: Sequence[ShownPartition]) -> None:
        """Raises what PostgreSQL says; the next call then opens another connection."""
        if rows:
            self._run(*self.statement(consumer, rows))

    def counts(self, consumer: str) -> MessageCounts:
        """Of its held messages and dead letters. Raises as `write` does."""
        (found,) = messages.counts_of(self._run(self._counts, {"consumers": [consumer]}).fetchall()).values()
        return found

    def _run(self, statement: str, given: Mapping[str, object]) -> psycopg.Cursor[Any]:
        try:
            connection = self._opened()
            connection.limit(TIMEOUT_S)
            return connection.execute(statement, given)
        except BaseException as error:
            self._drop(is_under_way=isinstance(error, StatementOverdue))
            raise

    def statement(self, consumer: str, rows: Sequence[ShownPartition]) -> tuple[str, dict[str, object]]:
        return self._write, {"consumer": consumer, "owner": self._owner, **_given(rows)}

    def close(self) -> None:
        self._drop(is_under_way=False)

    def _drop(self, *, is_under_way: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and is_under_way:
            with suppress(psycopg.Error, OSError):
                connection.cancel_safe(timeout=TIMEOUT_S)  # else it may wait on for a lock, and the next ones too
        close_quietly(connection)

    def _opened(self) -> BoundedConnection:
        if self._connection is None:
            given = {**_CONNECT, **parameters(self._alias), "application_name": NAME}
            self._connection = BoundedConnection.connect(**given, autocommit=True)
            self._connection.prepare_threshold = None  # a pooler of transactions has another session for each
            self._connection.limit(TIMEOUT_S)
            self._connection.execute(SHOW_LIFE, [self._life])
        return self._connection


def _given(rows: Sequence[ShownPartition]) -> dict[str, object]:
    return {
        "topics": [row.partition.topic for row in rows],
        "partitions": [row.partition.number for row in rows],
        "states": [row.state for row in rows],
        "reasons": [row.reason.replace("\0", "")[:_REASON_CHARS] for row in rows],
        "stable_offsets": [row.stable_offset for row in rows],
        "lags": [row.lag for row in rows],
        "ages": [row.oldest_age_s for row in rows],
        "handled": [row.handled for row in rows],
        "rates": [row.rate for row in rows],
    }
