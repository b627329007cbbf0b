"""The statements on `<TABLE>_seen`: ids of messages that consumers have handled, for senders that repeat them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import sql

from outbox.edges.postgres.common.table import identifier

SLICE = 5_000


class SeenIds:
    """Of the consumers that share one outbox table."""

    def __init__(self, table: str, *, window_s: float) -> None:
        """`window_s`: ids are kept for so long."""
        self._window_s = window_s

        def build(text: str) -> str:
            return sql.SQL(text).format(seen=identifier(f"{table}_seen")).as_string()

        # In one order, so transactions that add the same ids do not wait for each other in a circle.
        self._add = build(
            "/* seen */ INSERT INTO {seen} (consumer, topic, id) SELECT %(consumer)s::text, %(topic)s::text, a.id "
            "FROM unnest(%(ids)s::text[]) WITH ORDINALITY AS a (id, at) ORDER BY a.at ON CONFLICT DO NOTHING "
            "RETURNING id"
        )
        self._remove = build(
            "/* seen */ DELETE FROM {seen} WHERE consumer = %(consumer)s AND topic = %(topic)s "
            "AND id = ANY (%(ids)s::text[])"
        )
        self._tidy = build(
            "/* seen */ DELETE FROM {seen} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {seen} "
            "WHERE consumer = %(consumer)s AND at < clock_timestamp() - make_interval(secs => %(window_s)s) "
            "ORDER BY at LIMIT %(slice)s FOR UPDATE SKIP LOCKED))"
        )

    def add(self, connection: Any, consumer: str, topic: str, ids: Sequence[str]) -> list[str]:
        """The new ones. Waits for another transaction that is adding the same."""
        with connection.cursor() as cursor:
            cursor.execute(self._add, {"consumer": consumer, "topic": topic, "ids": list(ids)})
            return [id_ for (id_,) in cursor.fetchall()]

    def remove(self, connection: Any, consumer: str, topic: str, ids: Sequence[str]) -> None:
        with connection.cursor() as cursor:
            cursor.execute(self._remove, {"consumer": consumer, "topic": topic, "ids": list(ids)})

    def tidy(self, connection: Any, consumer: str) -> bool:
        """Deletes some that are older than the window. Whether there may be more."""
        with connection.cursor() as cursor:
            cursor.execute(self._tidy, {"consumer": consumer, "window_s": self._window_s, "slice": SLICE})
            return bool(cursor.rowcount >= SLICE)
