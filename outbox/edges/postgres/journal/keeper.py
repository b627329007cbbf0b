"""What the keeper asks, on a connection in autocommit mode. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.db import transaction

from outbox.core.journal.values import JournalState, Placed, StageRow
from outbox.edges.postgres.journal.rows import both_of, placed_of
from outbox.edges.postgres.journal.table import JournalTable

KEEPER_LOCK = 0x6F6F706A  # one of the two numbers of an advisory lock; the other one is that of the table


class KeeperTable(JournalTable):
    def expire(self, age_s: float, but: Sequence[str]) -> StageRow | None:
        text = (
            "/* journal */ UPDATE {stage} AS s SET is_expired = true FROM (SELECT append FROM {stage} "
            "WHERE (is_expired OR used_at < clock_timestamp() - make_interval(secs => %s)) "
            "AND append <> ALL (%s::uuid[]) ORDER BY used_at LIMIT 1 FOR UPDATE SKIP LOCKED) AS old "
            "WHERE s.append = old.append RETURNING s.append::text, s.journal, s.day, s.stores, s.begins"
        )
        rows = self._rows(text, [age_s, list(but)])
        if not rows:
            return None
        append, journal, day, stores, begins = rows[0]
        return StageRow(append, journal, day, tuple(stores), tuple(begins))

    def forget(self, append: str) -> None:
        self._rows("/* journal */ DELETE FROM {stage} WHERE append = %s::uuid AND is_expired", [append])

    def unindexed(self, limit: int) -> Sequence[tuple[str, Placed]]:
        text = (
            "/* journal */ SELECT f.journal, {f} FROM {fragment} AS f WHERE NOT f.is_indexed AND f.begin IS NOT NULL "
            "ORDER BY f.id LIMIT %s"
        )
        return [(journal, placed_of(row)) for journal, *row in self._rows(text, [limit])]

    def indexed(self, journal: str, begins: Sequence[int]) -> None:
        text = "/* journal */ UPDATE {fragment} SET is_indexed = true WHERE journal = %s AND begin = ANY (%s::bigint[])"
        self._rows(text, [journal, list(begins)])

    def lacking(self, known: Sequence[str], limit: int) -> Sequence[tuple[JournalState, Placed]]:
        """`known` are the stores that count."""
        text = (
            "/* journal */ SELECT {j}, {f} FROM {fragment} AS f JOIN {journal} AS j ON j.name = f.journal "
            "WHERE f.begin IS NOT NULL AND f.path <> '' AND (f.zones < least(2, j.replicas) OR cardinality(ARRAY("
            "SELECT unnest(f.replicas) INTERSECT SELECT unnest(%s::text[]))) < j.replicas) ORDER BY f.id LIMIT %s"
        )
        return [both_of(row) for row in self._rows(text, [list(known), limit])]

    def unscrubbed(self, age_s: float, limit: int) -> Sequence[tuple[JournalState, Placed]]:
        text = (
            "/* journal */ SELECT {j}, {f} FROM {fragment} AS f JOIN {journal} AS j ON j.name = f.journal "
            "WHERE f.scrubbed_at < clock_timestamp() - make_interval(secs => %s) AND f.begin IS NOT NULL "
            "AND f.path <> '' ORDER BY f.scrubbed_at LIMIT %s"
        )
        return [both_of(row) for row in self._rows(text, [age_s, limit])]

    def scrubbed(self, journal: str, begin: int, replicas: Sequence[str], zones: int) -> None:
        """Other replicas need their index objects."""
        text = (
            "/* journal */ UPDATE {fragment} SET scrubbed_at = clock_timestamp(), replicas = %s::text[], zones = %s, "
            "is_indexed = is_indexed AND replicas @> %s::text[] WHERE journal = %s AND begin = %s"
        )
        self._rows(text, [list(replicas), zones, list(replicas), journal, begin])

    def prune(self, journal: str) -> int:
        """A prefix goes. The journal is locked first: an append that commits meanwhile refers to the last fragment."""
        with transaction.atomic(using=self._connection.alias):
            text = "/* journal */ SELECT retention FROM {journal} WHERE name = %s AND retention IS NOT NULL"
            if not self._rows(f"{text} FOR NO KEY UPDATE", [journal]):
                return 0
            return self._prune(journal)

    def _prune(self, journal: str) -> int:
        text = (
            "/* journal */ WITH until AS (SELECT coalesce("
            "min(f.begin) FILTER (WHERE f.placed_at >= now() - j.retention), "
            'max(f."end")) AS at FROM {fragment} AS f, {journal} AS j WHERE j.name = %s AND f.journal = j.name '
            "AND f.begin IS NOT NULL), "
            'gone AS (DELETE FROM {fragment} AS f USING until WHERE f.journal = %s AND f."end" <= until.at '
            "RETURNING f.append, f.begin, f.path), "
            "kept AS (INSERT INTO {stage} (append, journal, day, stores, begins, is_expired) "
            "SELECT g.append, j.name, substr(min(g.path), length(j.name) + 2, 10), j.stores, array_agg(g.begin), true "
            "FROM gone AS g, {journal} AS j WHERE j.name = %s AND g.path <> '' GROUP BY g.append, j.name, j.stores "
            "RETURNING 1) SELECT (SELECT at FROM until), (SELECT count(*) FROM gone), (SELECT count(*) FROM kept)"
        )
        ((until, gone, kept),) = self._rows(text, [journal, journal, journal])
        if gone:
            text = "/* journal */ UPDATE {fragment} SET after = NULL WHERE journal = %s AND begin = %s"
            self._rows(text, [journal, until])
        return int(kept)

    def known(self, journal: str, appends: Sequence[str]) -> Mapping[str, Mapping[int, Sequence[str]] | None]:
        """Stages first: an append that commits meanwhile is found as one or the other."""
        found: dict[str, dict[int, Sequence[str]] | None] = {}
        text = "/* journal */ SELECT append::text FROM {stage} WHERE append = ANY (%s::uuid[])"
        staged = [append for (append,) in self._rows(text, [list(appends)])]
        text = (
            "/* journal */ SELECT append::text, part, replicas FROM {fragment} "
            "WHERE journal = %s AND append = ANY (%s::uuid[])"
        )
        for append, part, replicas in self._rows(text, [journal, list(appends)]):
            parts = found.setdefault(append, {})
            assert parts is not None
            parts[part] = tuple(replicas)
        return {**dict.fromkeys(staged), **found}

    def vacant(self, journal: str, begins: Sequence[int]) -> Sequence[int]:
        text = (
            "/* journal */ SELECT asked FROM unnest(%s::bigint[]) AS asked WHERE NOT EXISTS "
            "(SELECT FROM {fragment} AS f WHERE f.journal = %s AND f.begin = asked)"
        )
        return [begin for (begin,) in self._rows(text, [list(begins), journal])]

    def take(self) -> bool:
        """Become the one keeper, for as long as this session lasts. False: another session is it."""
        text = "/* journal */ SELECT pg_try_advisory_lock(%s, hashtext(%s))"
        return bool(self._rows(text, [KEEPER_LOCK, self._table])[0][0])
