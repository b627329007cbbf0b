"""Statements outside of the caller's transaction, and the one in it. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.types.json import Jsonb

from outbox.core.journal.chain import genesis
from outbox.core.journal.reading import EMPTY
from outbox.core.journal.values import Conditions, JournalState, Placed, Staged
from outbox.edges.postgres.journal.rows import build, placed_of, state_of


class JournalTable:
    """Of one connection of Django. In autocommit mode each call is committed when it returns."""

    def __init__(self, connection: BaseDatabaseWrapper, table: str) -> None:
        self._connection, self._table = connection, table

    def _rows(self, text: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(build(self._table, text), parameters)
            return cursor.fetchall() if cursor.description else []

    # ---- journals

    def create(
        self, name: str, replicas: int, stores: Sequence[str], fragment_bytes: int, retention_s: float | None
    ) -> bool:
        """False: there is one of this name, which is left as it is."""
        text = (
            "/* journal */ INSERT INTO {journal} (name, chain, replicas, stores, fragment_bytes, retention) "
            "VALUES (%s, %s, %s, %s, %s, make_interval(secs => %s)) ON CONFLICT (name) DO NOTHING RETURNING name"
        )
        given = [name, genesis(name), replicas, list(stores), fragment_bytes, retention_s]
        return bool(self._rows(text, given))

    def change(self, name: str, is_read_only: bool | None, retention_s: float | None) -> bool:
        """None leaves the value; a retention of 0 keeps everything. False: there is no such journal."""
        text = (
            "/* journal */ UPDATE {journal} SET is_read_only = coalesce(%s::boolean, is_read_only), "
            "retention = CASE WHEN %s::float8 IS NULL THEN retention WHEN %s::float8 = 0 THEN NULL "
            "ELSE make_interval(secs => %s::float8) END WHERE name = %s RETURNING name"
        )
        return bool(self._rows(text, [is_read_only, retention_s, retention_s, retention_s, name]))

    def state(self, journal: str) -> JournalState | None:
        rows = self._rows("/* journal */ SELECT {j} FROM {journal} AS j WHERE j.name = %s", [journal])
        return state_of(rows[0]) if rows else None

    def journals(self) -> Sequence[JournalState]:
        return [state_of(row) for row in self._rows("/* journal */ SELECT {j} FROM {journal} AS j ORDER BY j.name")]

    def lock(self, journal: str) -> JournalState | None:
        """In a transaction: no append is placed until it ends."""
        text = "/* journal */ SELECT {j} FROM {journal} AS j WHERE j.name = %s FOR NO KEY UPDATE"
        rows = self._rows(text, [journal])
        return state_of(rows[0]) if rows else None

    def add_gap(self, journal: str, length: int) -> None:
        text = (
            "/* journal */ INSERT INTO {fragment} (journal, append, part, path, length, sha256, blocks, replicas, "
            "zones, is_indexed) VALUES (%s, gen_random_uuid(), 0, '', %s, %s, '', '{{}}', 0, true)"
        )
        self._rows(text, [journal, length, EMPTY])

    def suspect(self, journal: str, reason: str) -> None:
        """The first reason stays. An empty one ends it."""
        text = "/* journal */ UPDATE {journal} SET suspect = %s WHERE name = %s AND (suspect = '' OR %s = '')"
        self._rows(text, [reason, journal, reason])

    # ---- stages

    def open(self, append: str, journal: str, stores: Sequence[str]) -> str:
        text = (
            "/* journal */ INSERT INTO {stage} (append, journal, stores, day) "
            "VALUES (%s::uuid, %s, %s, to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY/MM/DD')) RETURNING day"
        )
        return str(self._rows(text, [append, journal, list(stores)])[0][0])

    def extend(self, append: str) -> bool:
        text = (
            "/* journal */ UPDATE {stage} SET used_at = clock_timestamp() "
            "WHERE append = %s::uuid AND NOT is_expired RETURNING append"
        )
        return bool(self._rows(text, [append]))

    def place(self, staged: Staged, conditions: Conditions) -> int | None:
        """How many fragments were inserted, in the caller's transaction; 0: the append was committed before. None: its
        stage has expired."""
        text = (
            "/* journal */ WITH gone AS (DELETE FROM {stage} WHERE append = %s::uuid AND NOT is_expired RETURNING 1), "
            "given AS (SELECT * FROM unnest(%s::integer[], %s::text[], %s::bigint[], %s::bytea[], %s::bytea[], "
            "%s::text[], %s::integer[]) AS t (part, path, length, sha256, blocks, replicas, zones)), "
            "added AS (INSERT INTO {fragment} (journal, append, part, path, length, sha256, blocks, replicas, zones, "
            "conditions) SELECT %s, %s::uuid, part, path, length, sha256, blocks, string_to_array(replicas, ','), "
            "zones, CASE part WHEN 0 THEN %s::jsonb END FROM given WHERE EXISTS (SELECT FROM gone) ORDER BY part "
            "RETURNING 1) SELECT count(*) FROM added"
        )
        parts = staged.fragments
        asked = {
            "check": dict(conditions.check),
            "set": dict(conditions.set),
            "drop": list(conditions.drop),
            "offset": conditions.offset,
        }
        given = [
            staged.append,
            [one.part for one in parts],
            [one.path for one in parts],
            [one.length for one in parts],
            [one.sha256 for one in parts],
            [one.blocks for one in parts],
            [",".join(one.replicas) for one in parts],
            [one.zones for one in parts],
            staged.journal,
            staged.append,
            Jsonb(asked),
        ]
        added = int(self._rows(text, given)[0][0])
        if added:
            return added
        # A statement of its own: the one above may have waited for the transaction that has placed it.
        text = "/* journal */ SELECT 1 FROM {fragment} WHERE append = %s::uuid LIMIT 1"
        return 0 if self._rows(text, [staged.append]) else None

    # ---- fragments

    def at(self, journal: str, offset: int) -> tuple[Placed | None, int]:
        text = (
            "/* journal */ SELECT j.head, {f} FROM {journal} AS j LEFT JOIN LATERAL (SELECT * FROM {fragment} AS g "
            'WHERE g.journal = j.name AND g."end" > %s ORDER BY g."end" LIMIT 1) AS f ON true WHERE j.name = %s'
        )
        rows = self._rows(text, [offset, journal])
        if not rows:
            return None, -1
        head, *row = rows[0]
        return (None if row[0] is None else placed_of(row)), head

    def placed(self, append: str) -> Sequence[Placed]:
        text = (
            "/* journal */ SELECT {f} FROM {fragment} AS f WHERE f.append = %s::uuid AND f.begin IS NOT NULL "
            "ORDER BY f.part"
        )
        return [placed_of(row) for row in self._rows(text, [append])]
