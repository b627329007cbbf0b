"""The one read of exactly-once delivery: a page of records in id order, and beside it what decides its completeness.

The first row is the header: the sequence, the snapshot, the next xid, m of each lane, the clock, the table's file: all
of the very statement that returns the rows. What follows from them is decided by `core.frontier` and `core.verdict`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg import sql

from outbox.core.frontier import Snapshot, parse_snapshot
from outbox.edges.int8_arrays import Ids
from outbox.edges.table import identifier
from outbox.exceptions import OutboxError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = tuple[Any, ...]


class UnorderedPage(OutboxError):
    """The server returned a page in another order than asked for."""


@dataclass(frozen=True, slots=True)
class Page:
    snapshot: Snapshot
    sequence: int
    purged: dict[int, int]
    """m of each lane asked for."""
    read_at: datetime
    filenode: int
    rows: list[Row]
    """id, topic, key, value, header keys, header values, binary value, and the lane where there are several."""


def lane_of_row(lanes: int, *, keep_empty_key: bool) -> sql.Composed:
    """Records of one key share a lane; a record without key goes by its id. The mask makes the number positive."""
    by_key = sql.SQL("(hashtextextended(kafka_key, 0) & 9223372036854775807) %% {}").format(sql.Literal(lanes))
    if keep_empty_key:
        return sql.SQL("({})::int").format(by_key)
    by_id = sql.SQL("id %% {}").format(sql.Literal(lanes))
    return sql.SQL("(CASE WHEN kafka_key = '' THEN {} ELSE {} END)::int").format(by_id, by_key)


class Reader:
    """The statement, in its forms, for one table and lane count."""

    def __init__(self, table: str, sequence: str, lanes: int = 1, *, keep_empty_key: bool = False) -> None:
        self.lanes, self.sequence = lanes, sequence
        self._parts = {
            "table": identifier(table),
            "purged": identifier(f"{table}_purged"),
            "sequence": sql.SQL(sequence),
            "relation": sql.Literal(identifier(table).as_string()),
            "lane": lane_of_row(lanes, keep_empty_key=keep_empty_key),
        }
        self._forms = {(late, some): self._form(late, some) for late in (False, True) for some in (False, True)}

    def _form(self, late: bool, some_lanes: bool) -> str:
        """Late: rows below the highest excluded id may be wanted. A form of its own because only there the array of
        excluded ids must be hashed, which takes a plan that sees it."""
        several = self.lanes > 1
        text = (
            "/* read */ SELECT (SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM {sequence}) "
            "AS id, pg_current_snapshot()::text, age('3'::xid)::text, "
            "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint || ' ' || pg_relation_filenode({relation}), "
            "ARRAY(SELECT lane || ' ' || coalesce((SELECT batch FROM {purged} AS p WHERE p.lane = l.lane "
            "ORDER BY batch DESC LIMIT 1), 0) FROM unnest(%(lanes)s::int[]) AS l(lane)), NULL::text[], NULL::bytea"
            + (", NULL::int" if several else "")
            + " UNION ALL (SELECT id, kafka_topic, kafka_key, kafka_value, NULLIF(kafka_header_keys, '{{}}'), "
            "NULLIF(kafka_header_values, '{{}}'), kafka_value_binary"
            + (", {lane}" if several else "")
            + " FROM {table} WHERE id > %(look)s"
            + (" AND (id > %(highest)s OR id <> ALL(%(excluded)s))" if late else "")
            + (" AND {lane} = ANY(%(lanes)s::int[])" if some_lanes else "")
            + " ORDER BY id LIMIT %(limit)s)"
        )
        return sql.SQL(text).format(**self._parts).as_string()

    def read(
        self, connection: psycopg.Connection[Any], look: int, lanes: Sequence[int], excluded: Sequence[int], limit: int
    ) -> Page:
        """The first `limit` records above `look` of these lanes, without the `excluded` ones: ascending ids, all of
        them above `look`."""
        given: dict[str, Any] = {"look": look, "lanes": list(lanes), "limit": limit}
        late = bool(excluded)
        if late:
            given |= {"highest": excluded[-1], "excluded": Ids(excluded)}
        statement = self._forms[late, len(lanes) < self.lanes]
        with connection.cursor(binary=True) as cursor:
            rows = cursor.execute(statement, given, prepare=not late).fetchall()
        return self._page(rows, look)

    @staticmethod
    def _page(rows: list[Row], look: int) -> Page:
        sequence, snapshot, age, seen, purged, *_ = rows[0]
        del rows[0]
        if snapshot is None or ":" not in snapshot or (rows and not look < rows[0][0] <= rows[-1][0]):
            raise UnorderedPage(
                "PostgreSQL returned the page of records without its header in front, or not by ascending id. Nothing "
                "of it was sent. Report the server's version and the output of EXPLAIN for the statement /* read */."
            )
        microseconds, filenode = seen.split(" ")
        return Page(
            snapshot=parse_snapshot(snapshot, int(age)),
            sequence=sequence,
            purged={int(lane): int(batch) for lane, batch in (text.split(" ") for text in purged)},
            read_at=_EPOCH + timedelta(microseconds=int(microseconds)),
            filenode=int(filenode),
            rows=rows,
        )
