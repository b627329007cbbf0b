"""The statements of mark, purge and reset (MP/R) on one lane of the table, each a function of a connection.

After a takeover of the lane no older owner can mark. Every session that marks holds a session-level advisory lock that
carries lane and epoch. A new owner takes a transaction-level lock of the lane and lists the sessions that hold such a
lock. If one has a higher epoch, the lane is refused to the new owner. Otherwise it terminates the other sessions and
waits until they have ended, so that no statement of theirs can take effect afterwards. Purge and reset need no such
fence: their `leader_id` guard is enough."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID
from zlib import crc32

import psycopg
from psycopg import sql

from outbox.core.at_least_once.settled import Settled
from outbox.core.frontier import parse_snapshot
from outbox.edges.postgres.common import backends, locks, sizes
from outbox.edges.postgres.common.backends import BACKEND
from outbox.edges.postgres.common.table import identifier
from outbox.edges.postgres.common.texts import ERRORS, has_encoding
from outbox.edges.postgres.common.timestamps import CREATED
from outbox.edges.postgres.exactly_once.reader import SMALL_BYTES, lane_of_row
from outbox.edges.postgres.preflight import keepers
from outbox.exceptions import OutboxError

_MUTEX = -1  # no epoch is negative
_MUTEX_NUMBER = 4_294_967_295  # as pg_locks shows it
_GONE_POLL_S = 0.01
COLUMNS = (
    "id",
    "create_time",
    "kafka_topic",
    "kafka_key",
    "kafka_value",
    "kafka_header_keys",
    "kafka_header_values",
    "leader_id",
)


class MarkedRow(NamedTuple):
    """A record as marked. `created` tells two records apart that were given the same id."""

    id: int
    kafka_topic: str
    kafka_key: str
    value: bytes | str | None
    """A text only where the database has no encoding: then nobody knows whether it is one."""
    names: list[Any] | None
    values: list[Any] | None
    created: bytes


def large_of(rows: Sequence[MarkedRow]) -> dict[int, int]:
    """How many bytes each record has, about, of those that are not small."""
    found = {}
    for row in rows:
        size = len(row.kafka_key or "") + len(row.value or b"")
        if row.names is not None:
            size += sum(len(text or "") for text in (*row.names, *(row.values or ())))
        if size > SMALL_BYTES:
            found[row.id] = size
    return found


_row = partial(tuple.__new__, MarkedRow)


def _text_row(values: Sequence[Any]) -> MarkedRow:
    """Of a database without an encoding: a text comes as one, so that it is refused where it is none."""
    row: MarkedRow = _row(values)
    is_text = row.value is not None and len(row.created) > _TIME_BYTES
    return row._replace(value=str(row.value, "utf-8", ERRORS)) if is_text else row  # type: ignore[arg-type]


def _rows(cursor: Any) -> Any:
    return _row if has_encoding(cursor.connection) else _text_row


class Scopes(NamedTuple):
    """What operators hold, as the marks leave it out."""

    topics: frozenset[str] = frozenset()
    keys: frozenset[tuple[str, str]] = frozenset()
    """(topic, key)"""
    ids: frozenset[int] = frozenset()
    """Of records without key."""
    is_all: bool = False
    """The lane itself."""


_NOTHING = Scopes()
_HELD = (
    " AND id > %(look)s AND kafka_topic <> ALL(%(held_topics)s::text[]) AND (kafka_topic, kafka_key) NOT IN "
    "(SELECT * FROM unnest(%(held_key_topics)s::text[], %(held_keys)s::text[])) AND id <> ALL(%(held_ids)s::bigint[])"
)
# In front of the rows: what the very statement that marked them saw.
_SEEN = (
    "WITH marked AS (<mark>) SELECT (SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END "
    "FROM {sequence}) AS id, pg_current_snapshot()::text, age('3'::xid)::text, NULL::bytea, NULL::text[], "
    "NULL::text[], NULL::bytea UNION ALL SELECT * FROM marked"
)
_ROWS_MAX = 1 << 31
_TIME_BYTES = 8
UTF8_MAX = 4  # bytes of a character
_WALK_S, _WALK_SHARE = 30.0, 100  # once in a while everything is walked over, for at most this part of the time


class WrongTable(OutboxError):
    """The table is not there, or lacks columns of the outbox layout."""


class Marks:
    """Statements on `table` for one lane, on the connections that are given. It knows nothing of threads."""

    def __init__(
        self, table: str, lane: int = 0, lanes: int = 1, *, bytes_max: int = 32_000_000, keep_empty_key: bool = False
    ) -> None:
        self.name, self.lane = table, lane
        self._table = identifier(table)
        self._shown = self._table.as_string()
        self.held = _NOTHING
        """What is left out. Replaced as a whole, from any thread: what is freed is found from the beginning."""
        self.refused_by = ""
        """Which session has a higher epoch, when the lane was refused, and what to do."""
        self._walked_with = _NOTHING
        self._settled = Settled()
        self._walk_at = 0.0
        self._bytes_max = bytes_max
        self._mine = _lane_filter(lane, lanes, keep_empty_key=keep_empty_key)
        self._highest: int | None = None
        self._rows_max = _ROWS_MAX
        self.large: dict[int, int] = {}
        """How many bytes each record has that was marked or fetched last, about, of those that are not small."""
        self._purge = self._build(
            "/* purge */ DELETE FROM {table} WHERE id = ANY(%s::bigint[]) AND leader_id = %s RETURNING id"
        )
        self._kept = self._build(
            "/* kept */ SELECT count(*) FROM {table} WHERE id = ANY(%s::bigint[]) AND leader_id = %s"
        )
        self._reset = self._build(
            "/* reset */ UPDATE {table} SET leader_id = NULL WHERE id = ANY(%s::bigint[]) AND leader_id = %s"
        )
        self._sweep = self._build(
            "/* sweep */ SELECT id FROM {table} WHERE leader_id = %s AND id <= %s ORDER BY id LIMIT %s"
        )

    def _build(self, text: str, **parts: sql.Composable) -> str:
        return sql.SQL(text).format(table=self._table, **parts).as_string()

    # ---- takeover

    def take(self, connection: psycopg.Connection[Any], epoch: int, timeout_s: float) -> bool:
        """Whether `connection` is now the only one that may mark this lane; False: there is a newer owner."""
        give_up_at = time.monotonic() + timeout_s
        space, durable = self._inspect(connection)
        if not durable:
            # What is sent must not vanish in a crash of the server: a mark that is flushed flushes the writers before.
            connection.execute("SET synchronous_commit = on")
        number = epoch % 0x7FFF_FFFF
        try:
            if not self._take_over(connection, space, number, give_up_at):
                return False
        except psycopg.errors.LockNotAvailable as error:
            raise LaneBlocked(locks.holders(connection, space)) from error
        self._highest = None
        self._settled.reset()
        return True

    def _take_over(self, connection: psycopg.Connection[Any], space: int, number: int, give_up_at: float) -> bool:
        with connection.transaction():
            # Who may terminate a session goes by the role that has logged in, not by the role that it has assumed.
            connection.execute("/* take */ SET LOCAL ROLE NONE")
            connection.execute("/* take */ SELECT pg_advisory_xact_lock(%s, %s)", [space, _MUTEX])
            while others := [holder for holder in locks.holders(connection, space) if holder.number != _MUTEX_NUMBER]:
                if newer := [holder for holder in others if holder.number > number]:
                    self.refused_by = f"{locks.told(newer)}. {locks.remedy(newer)}"
                    return False
                if time.monotonic() > give_up_at:
                    raise StillThere(others)
                try:
                    for holder in others:
                        connection.execute("/* take */ SELECT pg_terminate_backend(%s)", [holder.pid])
                except psycopg.errors.InsufficientPrivilege as error:
                    raise StillThere(others) from error
                time.sleep(_GONE_POLL_S)
            row = connection.execute(
                f"/* take */ SELECT {BACKEND}, pg_advisory_lock(%s, %s)", [space, number]
            ).fetchone()
            assert row is not None
            backends.require(connection, row[0])
        return True

    def _inspect(self, connection: psycopg.Connection[Any]) -> tuple[int, bool]:
        """The space of the lane's locks, after a look at the columns."""
        found = connection.execute(
            "/* take */ SELECT t, current_setting('synchronous_commit') <> 'off', "
            "array(SELECT attname::text FROM pg_attribute WHERE attrelid = t AND attnum > 0 AND NOT attisdropped) "
            "FROM (SELECT to_regclass(%s)::oid::bigint) AS found(t)",
            [self._shown],
        ).fetchone()
        assert found is not None
        oid, durable, columns = found
        if oid is None:
            raise WrongTable(f"The table {self._shown} does not exist. Run migrate, or correct TABLE and the database.")
        if missing := [name for name in COLUMNS if name not in columns]:
            raise WrongTable(
                f"The table {self._shown} lacks the columns {', '.join(missing)}. Run migrate, or correct TABLE."
            )
        sequence, are_texts = self._sequence(connection), not has_encoding(connection)
        self._compose(binary="kafka_value_binary" in columns, sequence=sequence, are_texts=are_texts)
        return _space(oid, self.lane), bool(durable)

    def _sequence(self, connection: psycopg.Connection[Any]) -> str | None:
        """That draws the ids, where there is one and it may be looked at."""
        row = connection.execute(
            "/* take */ SELECT s FROM (SELECT pg_get_serial_sequence(%s, 'id')) AS found(s) "
            "WHERE has_sequence_privilege(s, 'SELECT')",
            [self._shown],
        ).fetchone()
        return str(row[0]) if row else None

    # ---- mark, fetch, sweep: on the taken connection

    def _compose(self, *, binary: bool, sequence: str | None, are_texts: bool) -> None:
        # textsend() and timestamptz_send() hand over the bytes as they are: nothing is decoded to be encoded again.
        value = "textsend(kafka_value::text)"
        fields = (
            "id, kafka_topic, kafka_key, "
            + (f"coalesce(kafka_value_binary, {value})" if binary else value)
            + ", CASE WHEN cardinality(kafka_header_keys) > 0 THEN kafka_header_keys END"
            ", CASE WHEN cardinality(kafka_header_values) > 0 THEN kafka_header_values END"
            f", timestamptz_send({CREATED})"
        )
        if are_texts:  # then one byte more tells that the value is a text
            fields += " || CASE WHEN kafka_value IS NULL THEN ''::bytea ELSE 't'::bytea END"
        parts = {
            "fields": sql.SQL(fields),
            "size": sql.SQL(sizes.of_record(binary=binary)),
            "mine": self._mine,
            "cut": sql.SQL("(SELECT id, sum(size) OVER (ORDER BY id) - size AS before FROM"),
        }
        # The array makes it one index lookup per id whatever the statistics say, and a row that another leader is
        # marking at this moment is waited for and marked, not skipped: its key would be overtaken.
        mark = (
            "/* mark */ UPDATE {table} SET leader_id = %(leader)s WHERE id = ANY(ARRAY("
            "SELECT id FROM {cut} (SELECT id, {size} AS size FROM {table} "
            "WHERE (leader_id IS NULL OR leader_id <> %(leader)s)"
            # One backend holds the lock of this owner: if a pooler hands the statement to another, it fails here.
            f" AND 1 / ({BACKEND} = %(backend)s)::int = 1"
            "{mine}{exclude}{holds} "
            "ORDER BY id LIMIT %(limit)s) AS eligible) AS measured WHERE before < %(bytes)s)) "
            "RETURNING {fields}"
        )
        exclude = sql.SQL(
            " AND (kafka_topic, kafka_key) NOT IN (SELECT * FROM unnest(%(topics)s::text[], %(keys)s::text[]))"
        )
        none, held = sql.SQL(""), sql.SQL(_HELD)
        self._mark = self._build(mark, exclude=none, holds=none, **parts)
        self._mark_others = self._build(mark, exclude=exclude, holds=none, **parts)
        self._sees = sequence is not None
        if sequence is not None:
            mark = _SEEN.replace("<mark>", mark)
            parts["sequence"] = sql.SQL(sequence)
        self._mark_free = self._build(mark, exclude=none, holds=held, **parts)
        self._mark_other_free = self._build(mark, exclude=exclude, holds=held, **parts)
        self._fetch = self._build(
            "/* fetch */ SELECT {fields} FROM {table} WHERE id = ANY(ARRAY(SELECT id FROM {cut} (SELECT id, {size} AS "
            "size FROM {table} WHERE id = ANY(%(ids)s::bigint[]) AND leader_id = %(leader)s) AS wanted) AS measured "
            "WHERE before < %(bytes)s)) AND leader_id = %(leader)s",
            **parts,
        )
        self._look_up = self._build(
            "/* fetch */ SELECT id FROM {table} WHERE id = ANY(%s::bigint[]) AND leader_id = %s", **parts
        )

    def mark(
        self, connection: psycopg.Connection[Any], leader: UUID, limit: int, exclude: Sequence[tuple[str, str]] = ()
    ) -> list[MarkedRow]:
        given: dict[str, Any] = {"leader": leader, "limit": min(limit, self._rows_max), "bytes": self._bytes_max}
        given["backend"] = backends.of(connection)
        if exclude:
            given |= {"topics": [topic for topic, _ in exclude], "keys": [key for _, key in exclude]}
        held = self.held
        if held != _NOTHING:
            rows = self._mark_unheld(connection, given, held)
        else:
            self._walked_with = held
            rows = _marked(connection, self._mark_others if exclude else self._mark, given)
        self._weigh(rows)
        if len(rows) < limit:
            self._highest = None
        else:
            self._highest = max(self._highest or 0, max(row.id for row in rows))
        return rows

    def _mark_unheld(self, connection: psycopg.Connection[Any], given: dict[str, Any], held: Scopes) -> list[MarkedRow]:
        """Not walking over a held backlog again and again: see `core.at_least_once.settled`."""
        begun = time.monotonic()
        if held != self._walked_with or begun >= self._walk_at:
            self._settled.reset()
            self._walked_with = held
        if held.is_all:
            return []
        given |= {"look": self._settled.look, "held_topics": list(held.topics), "held_ids": list(held.ids)}
        keys = list(held.keys)
        given |= {"held_key_topics": [topic for topic, _ in keys], "held_keys": [key for _, key in keys]}
        is_partial = "topics" in given  # keys that have no room here are passed over, too
        rows = _marked(connection, self._mark_other_free if is_partial else self._mark_free, given)
        if given["look"] == 0:
            now = time.monotonic()
            self._walk_at = now + max(_WALK_S, _WALK_SHARE * (now - begun))
        if not self._sees:
            return rows
        header: tuple[Any, ...] = rows.pop(0)
        sequence, snapshot, age, *_ = header
        if sequence is None:  # made anew meanwhile, see `reader.SEQUENCE_ANEW`
            self._settled.reset()
            return rows
        # A mark may have ended early for the size of its values, so one with rows has not seen all.
        last = given["look"] if is_partial else max((row.id for row in rows), default=None)
        self._settled.note(parse_snapshot(snapshot, int(age)), sequence, last)
        return rows

    def fetch(self, connection: psycopg.Connection[Any], leader: UUID, ids: Sequence[int]) -> list[MarkedRow]:
        """Those of the lowest ids, where all of them are too many bytes; one at least."""
        ids = sorted(ids)[: self._rows_max]
        given = {"ids": _array(ids), "leader": leader, "bytes": self._bytes_max}
        rows = _fetch_rows(connection, self._fetch, given)
        self._weigh(rows)
        return rows

    def _weigh(self, rows: Sequence[MarkedRow]) -> None:
        """After large records no more rows are looked at than a few statements can take: compressed headers are
        unpacked to be measured, and those of rows that find no room would be unpacked again and again."""
        self.large = large_of(rows)
        is_cut = sum(self.large.values()) >= self._bytes_max // UTF8_MAX
        self._rows_max = max(1, 4 * len(rows)) if is_cut else _ROWS_MAX

    def look_up(self, connection: psycopg.Connection[Any], leader: UUID, ids: Sequence[int]) -> list[int]:
        """Which of these are there."""
        return [row[0] for row in connection.execute(self._look_up, [_array(ids), leader], binary=True)]

    def sweep(self, connection: psycopg.Connection[Any], leader: UUID, limit: int) -> list[int]:
        """Not beyond what marks have reached, while there is more: a large backlog is not read for this."""
        bound = self._highest if self._highest is not None else (1 << 63) - 1
        return [row[0] for row in connection.execute(self._sweep, [leader, bound, limit], binary=True)]

    # ---- purge, reset: on any connection

    def purge(self, connection: psycopg.Connection[Any], leader: UUID, ids: Sequence[int]) -> list[int]:
        """The ids that were there, marked by `leader`, and are deleted now. Raises `RowsKept` when some survive."""
        gone = [row[0] for row in connection.execute(self._purge, [_array(ids), leader], binary=True)]
        if len(gone) < len(ids):
            row = connection.execute(self._kept, [_array(ids), leader]).fetchone()
            if row is not None and row[0]:
                raise keepers.kept(connection, self.name, row[0], marks=True)
        return gone

    def reset(self, connection: psycopg.Connection[Any], leader: UUID, ids: Sequence[int]) -> int:
        return connection.execute(self._reset, [_array(ids), leader]).rowcount


class StillThere(OutboxError):
    """This process could not end the sessions of an earlier owner in time."""

    def __init__(self, found: Sequence[locks.Holder]) -> None:
        super().__init__(
            f"An earlier owner still holds the lane, and this process could not end its session: {locks.told(found)}. "
            "Harvesters of one table must log in as one database role, or as members of pg_signal_backend. "
            f"{locks.remedy(found)}"
        )


class LaneBlocked(OutboxError):
    """Another session holds the lock under which owners of the lane take over from each other."""

    def __init__(self, found: Sequence[locks.Holder]) -> None:
        super().__init__(
            f"Another session holds the lock of the lane: {locks.told(found)}. {locks.remedy(found)}".strip()
        )


def _space(table: int, lane: int) -> int:
    """The first half of the lane's locks."""
    space = crc32(f"outbox/{table}/{lane}".encode())
    return space - (1 << 32) if space >= 1 << 31 else space


def strangers(connection: psycopg.Connection[Any], table: str, lane: int) -> list[locks.Holder]:
    """The sessions that hold locks of the lane as no harvester does: with another application_name, or the lock of
    takeovers for a long time."""
    row = connection.execute("SELECT to_regclass(%s)::oid::bigint", [identifier(table).as_string()]).fetchone()
    found = locks.holders(connection, _space(row[0] if row else 0, lane))
    return [
        holder
        for holder in found
        if not holder.application.startswith("outbox")
        or (holder.number == _MUTEX_NUMBER and (holder.since_s is None or holder.since_s >= locks.LONG_S))
    ]


def _marked(connection: psycopg.Connection[Any], statement: str, given: Any) -> list[MarkedRow]:
    try:
        return _fetch_rows(connection, statement, given)
    except psycopg.errors.DivisionByZero:
        backends.require(connection)
        raise


def _fetch_rows(connection: psycopg.Connection[Any], statement: str, given: Any) -> list[MarkedRow]:
    with connection.cursor(binary=True, row_factory=_rows) as cursor:
        return list(cursor.execute(statement, given).fetchall())


def _array(ids: Sequence[int]) -> str:
    """A list as PostgreSQL writes it; several times faster than dumping each element."""
    return "{" + ",".join(map(str, ids)) + "}"


def _lane_filter(lane: int, lanes: int, *, keep_empty_key: bool) -> sql.Composable:
    """Which rows belong to the lane: as in every delivery mode, so that a switch moves no key."""
    if lanes == 1:
        return sql.SQL("")
    return sql.SQL(" AND {} = {}").format(lane_of_row(lanes, keep_empty_key=keep_empty_key), sql.Literal(lane))
