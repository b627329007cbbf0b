"""The one read of exactly-once delivery: a page of the lowest ids, and beside it what decides its completeness.

The first row is the header: the sequence, the snapshot, the next xid, m of each lane, the clock, the table's file, the
backend: all of the very statement that returns the rows. What follows from them is decided by `core.frontier` and
`core.exactly_once.decisions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from operator import itemgetter
from typing import Any

import psycopg
from psycopg import sql

from outbox.core.frontier import Snapshot, parse_snapshot
from outbox.core.rows import Row
from outbox.edges.postgres.common import sizes
from outbox.edges.postgres.common.backends import BACKEND
from outbox.edges.postgres.common.int8_arrays import Ids
from outbox.edges.postgres.common.table import identifier
from outbox.edges.postgres.common.timestamps import CREATED
from outbox.edges.postgres.preflight.plans import Example
from outbox.exceptions import OutboxError

SMALL_BYTES = 1000
_PAGES = 20  # that are read in a dearer way before the cheaper one is tried again
_SIZED_STEP = 2
_SIZED_ROWS = 1000  # of the first page at that step; from its records the caller sees how many the next should have
_LANE_APART = 1 << 48  # ids of a page are not so far apart; were they, the lanes would only be less together
SEQUENCE_ANEW = "Something restarted the sequence of the table's ids while this process read it."
"""As ALTER SEQUENCE … RESTART does, which does not wait for readers: they may find the old file already empty."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UnorderedPage(OutboxError):
    """The server returned a page in another order than asked for."""


class UnknownAges(OutboxError):
    """This PostgreSQL reports its next transaction id in a way that this release does not know."""


def check_ages(connection: psycopg.Connection[Any]) -> None:
    """`age()` tells the next transaction id indirectly: once compared with one drawn before and one drawn after.
    The connection commits by itself, for a transaction with an id of its own would be told that one."""
    drawn = "/* xids */ SELECT pg_current_xact_id()::text::bigint, NULL"
    told = "/* xids */ SELECT age('3'::xid)::text::bigint, pg_current_snapshot()::text"
    (before, _), (age, snapshot), (after, _) = (
        connection.execute(statement).fetchall()[0] for statement in (drawn, told, drawn)
    )
    if not before < parse_snapshot(snapshot, age).next_xid <= after:
        raise UnknownAges(
            f"PostgreSQL reports its next transaction id as age {age} beside the snapshot {snapshot!r}, but draws "
            f"{before} before and {after} after it. The harvester would not find records that become visible late. "
            "Use a version of PostgreSQL that this release supports, 14 to 18."
        )


@dataclass(frozen=True, slots=True)
class Page:
    snapshot: Snapshot
    sequence: int
    purged: dict[int, int]
    """m of each lane asked for."""
    read_at: datetime
    filenode: int
    backend: str
    """Which has answered, see `edges.postgres.common.backends`."""
    is_full: bool
    """There may be more."""
    passes_over: bool
    """Rows were left out that are held, or another lane's."""
    rows: list[Row]
    """Of each lane by ascending id; those of a lane together, for what is used together should lie together in
    memory."""
    last_id: int | None


_SMALL_COLUMNS = (
    "CASE WHEN is_small THEN kafka_topic END, CASE WHEN is_small THEN kafka_key END, "
    "CASE WHEN is_small THEN kafka_value END, "
    + ", ".join(
        f"CASE WHEN is_small AND pg_column_size({name}) > {sizes.EMPTY_ARRAY} THEN {name} END"
        for name in (sizes.NAMES, sizes.VALUES)
    )
    + ", CASE WHEN is_small THEN kafka_value_binary END"
)
# None of the sizes needs the value itself, and what the CASE leaves out is not even fetched from its side table.
# Compressed headers are those of a row of 2 kB and more. The limit keeps the planner from putting `is_small` into each
# place where it is asked for.
_SMALL = (
    f"SELECT id, {_SMALL_COLUMNS}, {CREATED}<lane> FROM (SELECT *, coalesce({sizes.of_texts()} <= "
    f"CASE WHEN pg_column_size({sizes.NAMES}) + pg_column_size({sizes.VALUES}) <= {2 * sizes.EMPTY_ARRAY} "
    f"THEN %(small)s::int WHEN {sizes.ARE_UNPACKED} THEN %(small)s::int - ({sizes.ON_DISK}) END, false) AS is_small "
    "FROM {table} WHERE <where> ORDER BY id LIMIT %(limit)s) AS page"
)
_NAMES, _TEXTS = (f"NULLIF({name}, '{{{{}}}}')" for name in (sizes.NAMES, sizes.VALUES))
_SIZED = (
    f"SELECT id, kafka_topic, kafka_key, kafka_value, {_NAMES}, {_TEXTS}, kafka_value_binary, {CREATED}<lane> "
    "FROM (SELECT *, sum(size) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) - size AS before FROM "
    f"(SELECT *, {sizes.of_record()} AS size FROM {{table}} WHERE <where> ORDER BY id LIMIT %(limit)s) AS page) "
    "AS sized WHERE before < %(bytes)s ORDER BY id"
)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Of a read."""

    topics: frozenset[str] = frozenset()
    lanes: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.topics or self.lanes)


NOTHING = LeftOut()


def lane_of_row(lanes: int, *, keep_empty_key: bool) -> sql.Composed:
    """Records of one key share a lane; a record without key goes by its id. The masks make the numbers positive."""
    by_key = sql.SQL("(hashtextextended(kafka_key, 0) & 9223372036854775807) %% {}").format(sql.Literal(lanes))
    if keep_empty_key:
        return sql.SQL("({})::int").format(by_key)
    by_id = sql.SQL("(id & 9223372036854775807) %% {}").format(sql.Literal(lanes))
    return sql.SQL("(CASE WHEN kafka_key = '' THEN {} ELSE {} END)::int").format(by_id, by_key)


def _place_of_dealt(row: Row) -> int:
    return int(row[8]) * _LANE_APART + int(row[0])


class Reader:
    """The statement, in its forms, for one table and lane count.

    A page must not outgrow the memory, whatever the records before it were like. Adding up the sizes of a page costs
    the server more than the page of small records itself. So the first form leaves out records of more than so many
    bytes that a full page of the others has room; a page in which that happened is read again, and so are the next
    ones: with fewer rows, up to `SMALL_BYTES` each, and where that is not enough, in the form that adds up.
    """

    def __init__(self, table: str, sequence: str, lanes: int = 1, *, keep_empty_key: bool = False) -> None:
        self.lanes, self.sequence = lanes, sequence
        self._lowest_dealt = -(1 << 63) + lanes * _LANE_APART
        """Ids below it would overflow where lanes are dealt apart."""
        self._parts = {
            "table": identifier(table),
            "purged": identifier(f"{table}_purged"),
            "sequence": sql.SQL(sequence),
            "relation": sql.Literal(identifier(table).as_string()),
            "lane": lane_of_row(lanes, keep_empty_key=keep_empty_key),
        }
        either, several = (False, True), (False, True) if lanes > 1 else (False,)
        self._forms = {given: self._form(*given) for given in product(several, either, either, either, either)}
        self._step = 0  # of the ways to read a page, from the cheapest
        self._pages_left = 0  # at this step

    def examples(self) -> list[Example]:
        """Every form, for a look at its plan."""
        given = {
            "look": 0,
            "lanes": [0],
            "limit": 1000,
            "bytes": 1_000_000,
            "small": 1000,
            "highest": 1,
            "excluded": Ids([1]),
        }
        given |= {"wanted": [0], "topics": ["t"]}
        return [Example("read", form, given) for form in self._forms.values()]

    def _form(self, grouped: bool, late: bool, some_lanes: bool, some_topics: bool, sized: bool) -> str:
        """Grouped: by lane, for there are rows of more than one. Late: rows below the highest excluded id may be
        wanted. A form of its own because only there the array of excluded ids must be hashed, which takes a plan that
        sees it. Sized: the page ends with the row that exceeds so many bytes; else records that are not small come with
        their id alone."""
        several = self.lanes > 1
        dealt = f"greatest(id, {self._lowest_dealt})"  # ids further below, of a writer's own, are sorted in `_page`
        text = (
            "/* read */ SELECT (SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM {sequence}) "
            "AS id, pg_current_snapshot()::text, age('3'::xid)::text, "
            "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint || ' ' || pg_relation_filenode({relation}) "
            f"|| ' ' || {BACKEND}, "
            "ARRAY(SELECT lane || ' ' || coalesce((SELECT batch FROM {purged} AS p WHERE p.lane = l.lane "
            "ORDER BY batch DESC LIMIT 1), 0) FROM unnest(%(lanes)s::int[]) AS l(lane)), NULL::text[], NULL::bytea, "
            "NULL::timestamptz"
            + (", NULL::int" if several else "")
            + " UNION ALL ("
            + ("SELECT * FROM (" if grouped else "")
            + (_SIZED if sized else _SMALL)
            .replace("<lane>", ", {lane} AS lane" if several else "")
            .replace(
                "<where>",
                "id > %(look)s"
                + (" AND (id > %(highest)s OR id <> ALL(%(excluded)s))" if late else "")
                + (" AND {lane} = ANY(%(wanted)s::int[])" if some_lanes else "")
                + (" AND kafka_topic <> ALL(%(topics)s::text[])" if some_topics else ""),
            )
            # By one number, which is sorted faster than two columns; below zero, where no id from zero on overflows.
            + (f") AS dealt ORDER BY (lane - {self.lanes}) * {_LANE_APART} + {dealt}" if grouped else "")
            + ")"
        )
        return sql.SQL(text).format(**self._parts).as_string()

    def read(
        self,
        connection: psycopg.Connection[Any],
        look: int,
        lanes: Sequence[int],
        excluded: Sequence[int],
        limit: int,
        bytes_max: int = 8_000_000,
        left_out: LeftOut = NOTHING,
    ) -> Page:
        """The first records above `look` of these lanes, without the `excluded` ones: `limit` of them, or fewer, of
        which only the last may exceed `bytes_max`. The server passes over what is held as a whole and may be large."""
        given: dict[str, Any] = {"look": look, "lanes": list(lanes), "bytes": bytes_max}
        given["wanted"] = [lane for lane in lanes if lane not in left_out.lanes]
        given["topics"] = list(left_out.topics)
        late = bool(excluded)
        if late:
            given |= {"highest": excluded[-1], "excluded": Ids(excluded)}
        grouped = min(self.lanes, len(given["wanted"])) > 1
        form = grouped, late, len(given["wanted"]) < self.lanes, bool(left_out.topics)
        passes_over = form[2] or form[3]
        while True:
            given["limit"], given["small"] = rows_max, small = self._bounds(limit, bytes_max)
            is_sized = self._step == _SIZED_STEP
            rows = self._fetch(connection, self._forms[*form, is_sized], given, prepare=not late)
            if is_sized or all(row[1] is not None for row in rows):
                break
            self._step = 1 if self._step == 0 and small < SMALL_BYTES else _SIZED_STEP
            self._pages_left = _PAGES
        is_full = len(rows) > (1 if is_sized else rows_max)  # the header is one of them
        self._pages_left -= 1
        if self._step and self._pages_left <= 0:
            self._step, self._pages_left = self._step - 1, _PAGES
        return self._page(rows, look, grouped, is_full, passes_over)

    def _bounds(self, limit: int, bytes_max: int) -> tuple[int, int]:
        """Of the page: its rows, and the bytes of a small one among them."""
        if self._step == 1:
            limit = max(1, min(limit, bytes_max // SMALL_BYTES))
        elif self._step == _SIZED_STEP and self._pages_left == _PAGES:
            limit = min(limit, _SIZED_ROWS)  # compressed headers are unpacked to be measured
        return limit, min(SMALL_BYTES, bytes_max // limit)

    @staticmethod
    def _fetch(connection: Any, statement: str, given: dict[str, Any], *, prepare: bool) -> list[Row]:
        with connection.cursor(binary=True) as cursor:
            rows: list[Row] = cursor.execute(statement, given, prepare=prepare).fetchall()
        return rows

    def _page(self, rows: list[Row], look: int, grouped: bool, is_full: bool, passes_over: bool) -> Page:
        sequence, snapshot, age, seen, purged, *_ = rows[0]
        if sequence is None:
            raise psycopg.OperationalError(SEQUENCE_ANEW)
        del rows[0]
        place = _place_of_dealt if grouped else itemgetter(0)
        if grouped and look < self._lowest_dealt:
            rows.sort(key=place)
        ends = [place(row) for row in (*rows[:1], *rows[-1:])]
        if snapshot is None or ":" not in snapshot or (rows and not (look < rows[0][0] and ends[0] <= ends[1])):
            raise UnorderedPage(
                "PostgreSQL returned the page of records without its header in front, or in another order than "
                "requested. The harvester sent nothing of it. Report the server's version and the output of EXPLAIN "
                "for the statement /* read */."
            )
        microseconds, filenode, backend = seen.split(" ", 2)
        return Page(
            snapshot=parse_snapshot(snapshot, int(age)),
            sequence=sequence,
            purged={int(lane): int(batch) for lane, batch in (text.split(" ") for text in purged)},
            read_at=_EPOCH + timedelta(microseconds=int(microseconds)),
            filenode=int(filenode),
            backend=backend,
            is_full=is_full,
            passes_over=passes_over,
            rows=rows,
            last_id=(max(rows) if grouped else rows[-1])[0] if rows else None,
        )
