"""The statements on `<TABLE>_hold`, `<TABLE>_dead` and `<TABLE>_watch`, as harvesters use them. No decisions here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from outbox.core.holds.crashes import Care, Watch
from outbox.core.holds.values import HISTORY_MAX, OF_RECORDS, TEXT_MAX, DeadRecord, HoldActions, HoldRow
from outbox.core.names import LONG_KEY
from outbox.edges.postgres.common.table import identifier
from outbox.edges.postgres.exactly_once.reader import lane_of_row

Connection = psycopg.Connection[Any]
_REASONS = ", ".join(map(repr, OF_RECORDS))

# A record is known by its id and by when it was stashed: after TRUNCATE … RESTART IDENTITY ids are drawn a second time.
# Holds that an older release has placed do not know it.
_SAME = "h.record_id = EXCLUDED.record_id AND coalesce(h.stashed_at = EXCLUDED.stashed_at, true)"
_LOAD = (
    "/* holds */ SELECT hold_id, topic, "
    f"CASE WHEN reason = 'rejected' AND octet_length(key) > {LONG_KEY} THEN unit ELSE key END, lane, "
    "CASE WHEN lane IS NOT NULL THEN lane WHEN key IS NOT NULL THEN {lane} END, record_id, "
    "reason, attempts, error_code, last_error, wanted, "
    "extract(epoch FROM next_try - clock_timestamp())::float8, confirmed_by, history, "
    "record_id IS NULL OR EXISTS (SELECT FROM {table} AS o WHERE o.id = record_id "
    "AND coalesce(o.create_time = stashed_at, true)), "
    "CASE WHEN key IS NULL THEN (SELECT {lane} FROM {table} AS o WHERE o.id = record_id) END "
    "FROM (SELECT id AS hold_id, coalesce(key, '') AS kafka_key, coalesce(record_id, 0) AS id, topic, key, unit, lane, "
    "record_id, stashed_at, reason, attempts, error_code, last_error, wanted, next_try, confirmed_by, history "
    "FROM {hold}) AS h ORDER BY hold_id"
)
_PLACE = (
    "/* hold */ INSERT INTO {hold} AS h (topic, key, record_id, stashed_at, reason, attempts, error_code, last_error, "
    "next_try, history) SELECT topic, CASE WHEN key IS NOT NULL THEN o.kafka_key END, record_id, o.create_time, "
    "'rejected', attempts, code, error, "
    "clock_timestamp() + make_interval(secs => next_try_s), "
    "jsonb_build_array(jsonb_build_object('at', clock_timestamp(), 'code', code, 'error', error)) "
    "FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::int[], %s::text[], %s::text[], %s::float8[]) "
    "AS p(record_id, topic, key, attempts, code, error, next_try_s) "
    # Joined plainly, the planner may walk the whole index of the table.
    "CROSS JOIN LATERAL (SELECT create_time, kafka_key FROM {table} WHERE id = p.record_id OFFSET 0) AS o "
    "ON CONFLICT (unit, reason) DO UPDATE SET record_id = EXCLUDED.record_id, stashed_at = EXCLUDED.stashed_at, "
    "attempts = EXCLUDED.attempts, error_code = EXCLUDED.error_code, last_error = EXCLUDED.last_error, "
    "next_try = EXCLUDED.next_try, "
    f"wanted = CASE WHEN h.wanted <> 'retry' AND {_SAME} THEN h.wanted ELSE '' END, "
    f"since = CASE WHEN {_SAME} THEN h.since ELSE EXCLUDED.since END, "
    f"history = CASE WHEN {_SAME} THEN "
    f"jsonb_path_query_array(h.history || EXCLUDED.history, '$[last - {HISTORY_MAX - 1} to last]') "
    "ELSE EXCLUDED.history END"
)
_LIFT = f"/* hold */ DELETE FROM {{hold}} WHERE record_id = ANY(%s::bigint[]) AND reason IN ({_REASONS})"
_TO_DEAD_LETTERS = (
    "/* dead letter */ WITH gone AS (DELETE FROM {table} WHERE id = ANY(%(ids)s::bigint[])<guard> AND NOT EXISTS ("
    f"SELECT FROM {{hold}} AS h WHERE h.record_id = {{table}}.id AND h.reason IN ({_REASONS}) "
    "AND h.stashed_at <> {table}.create_time) RETURNING *), "
    f"lifted AS (DELETE FROM {{hold}} WHERE record_id IN (SELECT id FROM gone) AND reason IN ({_REASONS}) "
    "RETURNING record_id, history) "
    "INSERT INTO {dead} (record_id, topic, key, value, value_binary, header_keys, header_values, stashed_at, "
    "reason, attempts, error_code, last_error, history) SELECT id, kafka_topic, kafka_key, kafka_value, "
    "kafka_value_binary, coalesce(kafka_header_keys, '{{}}'), coalesce(kafka_header_values, '{{}}'), create_time, "
    "b.reason, b.attempts, b.code, b.error, coalesce(l.history, b.history) "
    "FROM gone JOIN unnest(%(ids)s::bigint[], %(reasons)s::text[], "
    "%(attempts)s::int[], %(codes)s::text[], %(errors)s::text[], %(histories)s::jsonb[]) "
    "AS b(record_id, reason, attempts, code, error, history) ON b.record_id = id "
    "LEFT JOIN (SELECT DISTINCT ON (record_id) * FROM lifted) AS l ON l.record_id = id ORDER BY id RETURNING record_id"
)
_DISCARD = (
    "/* discard */ WITH gone AS (DELETE FROM {table} WHERE id = ANY(%(ids)s::bigint[])<guard> AND EXISTS (SELECT "
    "FROM {hold} AS h WHERE h.record_id = {table}.id AND h.wanted = 'discard' "
    "AND coalesce(h.stashed_at = {table}.create_time, true)) RETURNING id), "
    f"lifted AS (DELETE FROM {{hold}} WHERE record_id IN (SELECT id FROM gone) AND reason IN ({_REASONS})) "
    "SELECT id FROM gone"
)
_CONFIRM = (
    "/* confirm */ UPDATE {hold} SET confirmed_by = confirmed_by || %(lane)s::int "
    "WHERE id = ANY(%(ids)s::bigint[]) AND NOT %(lane)s = ANY(confirmed_by)"
)
_RETRIED = (
    "/* hold */ DELETE FROM {hold} WHERE record_id = ANY(%s::bigint[]) AND reason = 'poison' AND wanted = 'retry'"
)
_LIFT_REJECTED = "/* hold */ DELETE FROM {hold} WHERE record_id = %s AND reason = 'rejected'"
_HOLD_POISON = (
    "/* hold */ INSERT INTO {hold} (topic, key, record_id, stashed_at, reason, attempts, error_code, last_error) "
    "SELECT kafka_topic, kafka_key, id, create_time, 'poison', %(crashes)s, 'CRASHED', %(error)s FROM {table} "
    "WHERE id = %(id)s ON CONFLICT (unit, reason) DO UPDATE SET record_id = EXCLUDED.record_id, "
    "stashed_at = EXCLUDED.stashed_at, attempts = EXCLUDED.attempts, last_error = EXCLUDED.last_error, wanted = '', "
    "since = now()"
)
_WATCHED = (
    "/* watch */ SELECT owner, is_clean, crashes, started, suspected, EXISTS (SELECT FROM pg_locks "
    "WHERE locktype = 'advisory' AND objsubid = 1 "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND (classid::bigint << 32 | objid::bigint) = hashtextextended(owner, 0)) FROM {watch} WHERE lane = %s"
)
_CALM = (
    "/* watch */ UPDATE {watch} SET started = '{{}}', suspected = '{{}}', crashes = 0 WHERE lane = %s AND owner = %s"
)
_WATCH = (
    "/* watch */ INSERT INTO {watch} (lane, owner, crashes, suspected) VALUES (%(lane)s, %(owner)s, %(crashes)s, "
    "%(suspected)s) ON CONFLICT (lane) DO UPDATE SET owner = EXCLUDED.owner, is_clean = false, "
    "crashes = EXCLUDED.crashes, suspected = EXCLUDED.suspected, started = '{{}}'"
)


MARKED = " AND leader_id = %(leader)s::uuid"
UNMARKED = " AND leader_id IS DISTINCT FROM %(leader)s::uuid"


class HoldTable:
    """For one outbox table. `guard` narrows what may be deleted, as at-least-once delivery needs it: `MARKED`, or
    `UNMARKED`."""

    def __init__(self, table: str, *, keep_empty_key: bool = False, guard: str = "") -> None:
        self._keep_empty_key = keep_empty_key
        self._parts = {
            "table": identifier(table),
            **{part: identifier(f"{table}_{part}") for part in ("hold", "dead", "watch")},
        }
        self._place, self._lift, self._confirm = map(self._build, (_PLACE, _LIFT, _CONFIRM))
        self._dead_letter, self._discard = (
            self._build(text.replace("<guard>", guard)) for text in (_TO_DEAD_LETTERS, _DISCARD)
        )
        self._loads: dict[int, str] = {}

    def _build(self, text: str, **parts: sql.Composable) -> str:
        return sql.SQL(text).format(**self._parts, **parts).as_string()

    def exist(self, connection: Connection) -> bool:
        """Whether there are such tables: a table of the goharvest-compatible layout has none."""
        names = [self._parts[part].as_string() for part in ("hold", "dead", "watch")]
        row = connection.execute(
            "/* tables */ SELECT " + " AND ".join("to_regclass(%s) IS NOT NULL" for _ in names), names
        ).fetchone()
        return bool(row and row[0])

    # ---- what a lane may not send

    def load(self, connection: Connection, lanes: int) -> list[HoldRow]:
        """Every hold, in the order in which they were placed. Next to nothing while there is none."""
        if lanes not in self._loads:
            lane = lane_of_row(lanes, keep_empty_key=self._keep_empty_key).as_string().replace("%%", "%")
            self._loads[lanes] = self._build(_LOAD, lane=sql.SQL(lane))
        found = []
        for row in connection.execute(self._loads[lanes]).fetchall():
            values: Any = (*row[:12], tuple(row[12]), tuple(row[13]), *row[14:])
            found.append(HoldRow(*values))
        return found

    def write(self, connection: Connection, placed: Sequence[HoldRow], lifted: Sequence[int]) -> None:
        """What was refused, and then what is delivered or gone."""
        if placed:
            self._write_placed(connection, placed)
        if lifted:
            connection.execute(self._lift, [list(lifted)])

    def _write_placed(self, connection: Connection, placed: Sequence[HoldRow]) -> None:
        columns = list(zip(*((p.head, p.topic, p.key, p.attempts, p.code, _cut(p.error), p.due_s)
                             for p in sorted(placed, key=lambda hold: hold.head)), strict=True))  # fmt: skip
        connection.execute(self._place, [list(column) for column in columns])
        # One that was retried and refused has not crashed anybody: from now on it is rejected.
        connection.execute(self._build(_RETRIED), [[p.head for p in placed]])

    # ---- with a purge

    def run(self, connection: Connection, lane: int, hold_actions: HoldActions, **given: Any) -> frozenset[int]:
        """Inside of a transaction. The ids of the records that it deleted: the guard, a request that was withdrawn or
        another record with the same id may have saved some."""
        gone: list[tuple[int]] = []
        if hold_actions.dead_records:
            gone += self._move_to_dead_letters(connection, hold_actions.dead_records, given)
        if hold_actions.discarded:
            gone += connection.execute(self._discard, {"ids": list(hold_actions.discarded), **given}).fetchall()
        if hold_actions.confirmed:
            connection.execute(self._confirm, {"lane": lane, "ids": list(hold_actions.confirmed)})
        return frozenset(id_ for (id_,) in gone)

    def run_soon(self, connection: Connection, lane: int, hold_actions: HoldActions, wait_ms: int) -> None:
        """The same in a part of the transaction that can fail alone, and that waits so long at most for a lock."""
        with connection.transaction():
            before = connection.execute("/* hold actions */ SELECT current_setting('lock_timeout')").fetchone()
            connection.execute(f"/* hold actions */ SET LOCAL lock_timeout = '{wait_ms}ms'")
            self.run(connection, lane, hold_actions)
            connection.execute("/* hold actions */ SELECT set_config('lock_timeout', %s, true)", before)

    def _move_to_dead_letters(
        self, connection: Connection, dead_records: Sequence[DeadRecord], given: dict[str, Any]
    ) -> list[tuple[int]]:
        return connection.execute(
            self._dead_letter,
            {
                "ids": [b.hold.head for b in dead_records],
                "reasons": [b.reason for b in dead_records],
                "attempts": [b.hold.attempts for b in dead_records],
                "codes": [b.hold.code for b in dead_records],
                "errors": [_cut(b.hold.error) for b in dead_records],
                # As it is: a database without an encoding takes no escape of what is not ASCII.
                "histories": [json.dumps(b.hold.history, ensure_ascii=False) for b in dead_records],
                **given,
            },
        ).fetchall()

    # ---- crashes

    def watch(self, connection: Connection, lane: int) -> Watch | None:
        row = connection.execute(self._build(_WATCHED), [lane]).fetchone()
        return Watch(row[0], row[1], row[2], tuple(row[3]), tuple(row[4]), row[5]) if row else None

    def show_alive(self, connection: Connection, owner: str) -> None:
        """For as long as the connection stands: a lock that nobody waits for, and that all roles may see. Whoever else
        holds it shows the same."""
        connection.execute("/* watch */ SELECT pg_try_advisory_lock_shared(hashtextextended(%s, 0))", [owner])

    def own(self, connection: Connection, lane: int, owner: str, care: Care) -> None:
        """From now on the lane counts as left uncleanly, until `leave`; a poison record is held."""
        with connection.transaction():
            if care.poison is not None:
                error = f"{care.crashes} harvesters ended without warning while they sent this record alone"
                given = {"id": care.poison, "crashes": care.crashes, "error": error}
                connection.execute(self._build(_LIFT_REJECTED), [care.poison])
                connection.execute(self._build(_HOLD_POISON), given)
            suspected = list(care.suspects)
            connection.execute(
                self._build(_WATCH), {"lane": lane, "owner": owner, "crashes": care.crashes, "suspected": suspected}
            )

    def start(self, connection: Connection, lane: int, owner: str, ids: Sequence[int]) -> None:
        """A batch is about to be sent."""
        connection.execute(
            self._build("/* watch */ UPDATE {watch} SET started = %s WHERE lane = %s AND owner = %s"),
            [list(ids), lane, owner],
        )

    def calm(self, connection: Connection, lane: int, owner: str) -> None:
        """A batch has succeeded: nothing is counted any more."""
        connection.execute(self._build(_CALM), [lane, owner])

    def leave(self, connection: Connection, lane: int, owner: str) -> None:
        """The lane ends cleanly."""
        connection.execute(
            self._build("/* watch */ UPDATE {watch} SET is_clean = true WHERE lane = %s AND owner = %s"),
            [lane, owner],
        )


def _cut(text: str) -> str:
    """PostgreSQL takes no NUL."""
    return text.replace("\0", "")[:TEXT_MAX]
