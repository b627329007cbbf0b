"""The statements on `<TABLE>_replay`: ranges of messages that consumers handle once more. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import sql

from outbox.core.consumers.replay import Replay
from outbox.core.consumers.values import Partition
from outbox.edges.postgres.common.table import identifier

_COLUMNS = "r.id, r.consumer, r.topic, r.topic_id, r.partitions, r.firsts, r.ends, r.stashes, r.request"


@dataclass(frozen=True, slots=True)
class EndedReplay:
    id: int
    ended_at: datetime


class Replays:
    """Of the consumers that share one outbox table. Each function takes a Django connection."""

    def __init__(self, table: str) -> None:
        def build(text: str) -> str:
            names = {name: identifier(f"{table}_{name}") for name in ("replay", "owner", "partition", "position")}
            return sql.SQL(text).format(**names).as_string()

        self._open = build(
            f"/* replay */ SELECT {_COLUMNS} FROM {{replay}} AS r WHERE r.ended_at IS NULL "
            "AND (%(consumer)s::text IS NULL OR r.consumer = %(consumer)s) "
            "AND (%(topic)s::text IS NULL OR r.topic = %(topic)s) ORDER BY r.consumer, r.topic"
        )
        self._ended = build(
            "/* replay */ SELECT r.id, r.ended_at FROM {replay} AS r WHERE r.consumer = %(consumer)s "
            "AND r.topic = %(topic)s AND r.topic_id = %(topic_id)s AND r.request = %(request)s "
            "AND r.ended_at IS NOT NULL AND NOT r.is_cancelled ORDER BY r.id DESC LIMIT 1"
        )
        self._begin = build(
            "/* replay */ INSERT INTO {replay} (consumer, topic, topic_id, request, partitions, firsts, ends, stashes) "
            "VALUES (%(consumer)s, %(topic)s, %(topic_id)s, %(request)s, %(partitions)s::integer[], "
            "%(firsts)s::bigint[], %(ends)s::bigint[], %(stashes)s) ON CONFLICT DO NOTHING RETURNING id"
        )
        self._end = build(
            "/* replay */ UPDATE {replay} SET ended_at = clock_timestamp(), is_cancelled = %(is_cancelled)s "
            "WHERE id = %(id)s AND ended_at IS NULL"
        )
        self._forget = [
            build(f"/* replay */ DELETE FROM {{{table}}} WHERE consumer = %(name)s") for table in ("owner", "partition")
        ]
        self._forget_position = build("/* replay */ DELETE FROM {position} WHERE consumer = %(name)s")
        self._has_position = build("/* replay */ SELECT EXISTS (SELECT FROM {position} WHERE consumer = %(name)s)")

    def open(self, connection: Any, consumer: str | None = None, topic: str | None = None) -> list[Replay]:
        """Those that have not ended."""
        return [_replay(row) for row in _rows(connection, self._open, {"consumer": consumer, "topic": topic})]

    def ended(self, connection: Any, consumer: str, topic: str, topic_id: str, request: str) -> EndedReplay | None:
        """The last one of this request that has handled everything."""
        given = {"consumer": consumer, "topic": topic, "topic_id": topic_id, "request": request}
        return next((EndedReplay(*row) for row in _rows(connection, self._ended, given)), None)

    def begin(self, connection: Any, replay: Replay) -> int | None:
        """Its number. None: the topic has another replay of the consumer that has not ended."""
        spans = sorted(replay.spans.items())
        given = {
            "consumer": replay.consumer,
            "topic": replay.topic,
            "topic_id": replay.topic_id,
            "request": replay.request,
            "partitions": [partition.number for partition, _ in spans],
            "firsts": [span.start for _, span in spans],
            "ends": [span.stop for _, span in spans],
            "stashes": replay.stashes,
        }
        return next((int(id_) for (id_,) in _rows(connection, self._begin, given)), None)

    def end(self, connection: Any, replay: Replay, *, is_cancelled: bool) -> bool:
        """The first call of a transaction: its rows in other tables go. False: it has ended before."""
        name = {"name": replay.name}
        with connection.cursor() as cursor:
            cursor.execute("/* replay */ SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            cursor.execute(self._end, {"id": replay.id, "is_cancelled": is_cancelled})
            if not cursor.rowcount:
                return False
            is_left = True
            while is_left:  # a statement that waits for a process that moves a row misses the new one
                cursor.execute(self._forget_position, name)
                cursor.execute(self._has_position, name)
                (is_left,) = cursor.fetchone()
            for statement in self._forget:
                cursor.execute(statement, name)
        return True


def _replay(row: tuple[Any, ...]) -> Replay:
    id_, consumer, topic, topic_id, partitions, firsts, ends, stashes, request = row
    spans = {
        Partition(topic, number): range(first, end) for number, first, end in zip(partitions, firsts, ends, strict=True)
    }
    return Replay(id_, consumer, topic, topic_id, spans, stashes, request)


def _rows(connection: Any, statement: str, given: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, given)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found
