"""The statements on `<TABLE>_delivery` and `<TABLE>_destination`, on a connection of one thread.

Each is a transaction of its own. Every statement after the lease names the token of the lease, and only the server's
clock counts. Nothing is decided here.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg
from psycopg import sql

from outbox.core.relay.circuit import Access, DestinationChange, DestinationRow
from outbox.core.relay.settlement import Refund, Settle, Settlement
from outbox.core.relay.table import DeliveriesUnavailable, Due
from outbox.core.relay.turns import Delivery, DeliveryContent
from outbox.edges.postgres.common.session import BoundedConnection, close_quietly
from outbox.edges.postgres.common.table import identifier

KEYS_MAX = 200
"""Keys of a destination that one statement reads. The next statement goes on behind them."""
EXPIRED_MAX = 1_000
HISTORY_MAX = 20
TEXT_MAX = 2_000
SWEEP_S = 1.0
_BEFORE_ALL = "-infinity"

_LIVING = "d.lease_token IS NULL AND d.died_at IS NULL"
_IS_DUE = "d.available_at <= statement_timestamp()"
_LEASE = (
    "UPDATE {delivery} AS d SET lease_token = %(token)s::uuid, charged_lease = NULL, leases = d.leases + 1, "
    "lease_until = clock_timestamp() + make_interval(secs => %(lease_s)s) "
)
_RETURNING = (
    "RETURNING d.id, d.destination, d.key, d.attempts, d.leases, d.available_at::text, "
    "extract(epoch FROM clock_timestamp() - d.failed_at)::float8, d.message_id::text, d.event, d.payload, "
    "d.content_type"
)
_ERROR = (
    "(CASE WHEN jsonb_array_length(d.history) >= {history} THEN d.history - 0 ELSE d.history END) || "
    "jsonb_build_object('at', to_jsonb(clock_timestamp()), 'error', g.error)"
)


class Deliveries:
    """Of the relays that share one table."""

    def __init__(
        self,
        table: str,
        connect: Callable[[], BoundedConnection],
        *,
        sweep_s: float = SWEEP_S,
        statement_timeout_s: float = 10.0,
    ) -> None:
        """Every `sweep_s` all destinations are searched, from their first rows on. Between two sweeps a search begins
        where the lease before has ended. So it does not read the index entries of rows that are gone, which stay for
        as long as another transaction may see them."""
        self._connect = connect
        self._timeout_s, self._sweep_s = statement_timeout_s, sweep_s
        self._connection: BoundedConnection | None = None
        self._floors: dict[str, str] = {}
        """Destinations → from which time on their deliveries without a key are searched."""
        self._swept_at = float("-inf")
        self._is_sweeping = False
        self._known: list[str] = []
        """Destinations that a sweep has found, in order."""
        self._found: list[str] = []
        """By the sweep under way."""
        self._keys: dict[str, str] = {}
        """Destinations → the ordered key that was read last."""
        names = {"delivery": identifier(f"{table}_delivery"), "destination": identifier(f"{table}_destination")}

        def build(text: str) -> str:
            error = sql.SQL(_ERROR).format(history=sql.Literal(HISTORY_MAX))
            return sql.SQL(text).format(**names, error=error).as_string()

        self._due_sql = build(_due())
        self._known_sql = build(_due_of_known())
        self._lease_sql = build(_lease())
        self._keys_sql = build(_lease_keys())
        self._suspect_sql = build(_lease_suspect())
        self._expire_sql = build(_expire())
        self._settle_sql = build(_settle())
        self._refund_sql = build(_refund())
        self._change_sql = build(_change())
        self._reserve_sql = build(_reserve())

    # ---- leases

    def due(self, after: str, limit: int) -> tuple[list[Due], str]:
        if not after:
            self._is_sweeping = time.monotonic() >= self._swept_at + self._sweep_s
            self._swept_at = time.monotonic() if self._is_sweeping else self._swept_at
            self._found = []
        found = self._sweep(after, limit) if self._is_sweeping else self._search(after, limit)
        due = [_due_of(row[:-1]) for row in found if any(row[1:4])]
        return due, found[-1][0] if len(found) == limit else ""

    def _sweep(self, after: str, limit: int) -> list[tuple[Any, ...]]:
        found = self._run(self._due_sql, {"after": after, "limit": limit})
        self._found += [row[0] for row in found]
        if len(found) < limit:
            self._known = self._found
        for name, has_free, *_, now in found:
            self._floors.pop(name, None)
            if not has_free:
                self._floors[name] = now
        return found

    def _search(self, after: str, limit: int) -> list[tuple[Any, ...]]:
        names = self._known[bisect_right(self._known, after) :][:limit]
        floors = [self._floors.get(name, _BEFORE_ALL) for name in names]
        return self._run(self._known_sql, {"names": names, "floors": floors}) if names else []

    def lease(self, token: str, lease_s: float, wanted: Mapping[str, int]) -> list[Delivery]:
        names = list(wanted)
        floors = [self._floors.get(name, _BEFORE_ALL) for name in names]
        given = {"names": names, "counts": list(wanted.values()), "floors": floors}
        found = self._run(self._lease_sql, {"token": token, "lease_s": lease_s, **given})
        # RETURNING promises no order.
        found.sort(key=lambda row: (row[5], row[0]))
        self._floors.update({row[1]: row[5] for row in found})
        return [_delivery(row, token) for row in found]

    def lease_keys(self, token: str, lease_s: float, wanted: Mapping[str, int]) -> list[Delivery]:
        given = {"names": list(wanted), "counts": list(wanted.values()), "limit": KEYS_MAX}
        after = [self._keys.pop(name, "") for name in wanted]
        found = self._run(self._keys_sql, {"token": token, "lease_s": lease_s, "after": after, **given})
        self._keys.update({row[1]: row[2] for row in found if row[0] is None})
        return [_delivery(row, token) for row in sorted(row for row in found if row[0] is not None)]

    def lease_suspect(self, token: str, lease_s: float, destinations: Sequence[str]) -> list[Delivery]:
        given = {"token": token, "lease_s": lease_s, "names": list(destinations)}
        return [_delivery(row, token) for row in self._run(self._suspect_sql, given)]

    def expire(self) -> int:
        return len(self._run(self._expire_sql, {"limit": EXPIRED_MAX}))

    # ---- results

    def settle(self, settlements: Sequence[Settlement]) -> set[int]:
        gone = [one for one in settlements if one.settle is Settle.DELIVERED]
        kept = [one for one in settlements if one.settle is not Settle.DELIVERED]
        given = {
            "gone": [one.delivery.id for one in gone],
            "gone_tokens": [one.delivery.token for one in gone],
            "kept": [one.delivery.id for one in kept],
            "kept_tokens": [one.delivery.token for one in kept],
            "returned": [one.settle is Settle.RETURNED for one in kept],
            "charged": [int(one.is_charged) for one in kept],
            "pauses": [one.pause_s for one in kept],
            "errors": [_text(one.error) for one in kept],
            "reasons": [one.reason for one in kept],
            "blocks": [one.blocks_key for one in kept],
        }
        return {row[0] for row in self._run(self._settle_sql, given)}

    def refund(self, refunds: Sequence[Refund]) -> int:
        given = {"ids": [one.id for one in refunds], "tokens": [one.token for one in refunds]}
        return len(self._run(self._refund_sql, given))

    # ---- destinations

    def change(self, destination: str, change: DestinationChange) -> bool:
        after = change.after
        given = {
            "name": destination,
            "expected": change.expected,
            "version": after.version,
            "access": after.access.value,
            "wait_s": after.wait_s,
            "failures": after.failures,
            "is_failing": after.access is not Access.CLOSED,
            "reason": _text(after.reason),
            "needs_end": change.needs_end_of_wait,
        }
        return bool(self._run(self._change_sql, given))

    def reserve(self, destination: str, count: int, spacing_s: float) -> float:
        given = {"name": destination, "taken_s": count * spacing_s}
        return float(self._run(self._reserve_sql, given)[0][0])

    # ---- the connection

    def close(self) -> None:
        connection, self._connection = self._connection, None
        close_quietly(connection)

    def _run(self, statement: str, given: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        try:
            if self._connection is None:
                self._connection = self._connect()
            self._connection.limit(self._timeout_s)
            return list(self._connection.execute(statement, given, binary=False).fetchall())
        except psycopg.OperationalError as error:
            self.close()
            raise DeliveriesUnavailable(str(error)) from error


def _due_of(row: Sequence[Any]) -> Due:
    name, free, keys, suspects, version, access, wait_s, failures, failing_s, reason, next_s = row
    known = (
        DestinationRow(version, Access(access), wait_s, failures, failing_s, reason) if version is not None else None
    )
    return Due(name, known or DestinationRow(), free, keys, suspects, next_s)


def _delivery(row: Sequence[Any], token: str) -> Delivery:
    id_, destination, key, attempts, leases, _, failed_s, *content = row
    return Delivery(
        id_,
        destination,
        token,
        key=key,
        attempts=attempts,
        leases=leases,
        failed_s=failed_s,
        content=DeliveryContent(*content),
    )


def _text(text: str) -> str:
    """As PostgreSQL can keep it."""
    return text[:TEXT_MAX].replace("\0", "").encode(errors="replace").decode()


# ---- the statements


_UNLEASED = f"{_LIVING} AND d.leases = 0"


def _due() -> str:
    """A loose scan: one step of an index for each destination, however many deliveries each has."""

    def behind(name: str) -> str:
        each = (
            f"(SELECT d.destination FROM {{delivery}} AS d WHERE {_LIVING} AND d.leases {leases} "
            f"AND d.destination > {name} ORDER BY d.destination LIMIT 1)"
            for leases in ("= 0", "> 0")
        )
        return f"least({', '.join(each)})"

    return (
        f"/* due */ WITH RECURSIVE n (name, at) AS (SELECT {behind('%(after)s')}, 1 UNION ALL "
        f"SELECT {behind('n.name')}, n.at + 1 FROM n WHERE n.name IS NOT NULL AND n.at < %(limit)s) "
        f"{_shown('')} FROM n LEFT JOIN {{destination}} AS r ON r.name = n.name WHERE n.name IS NOT NULL "
        "ORDER BY n.name"
    )


def _due_of_known() -> str:
    return (
        f"/* due */ {_shown('AND d.available_at >= n.floor')} "
        "FROM unnest(%(names)s::text[], %(floors)s::timestamptz[]) AS n (name, floor) "
        "LEFT JOIN {destination} AS r ON r.name = n.name ORDER BY n.name"
    )


def _shown(from_floor: str) -> str:
    """Of each destination `n`, with its row `r`."""

    def has(condition: str) -> str:
        return f"EXISTS (SELECT FROM {{delivery}} AS d WHERE d.destination = n.name AND {condition} AND {_IS_DUE})"

    return (
        f"SELECT n.name, {has(f'{_UNLEASED} AND NOT d.is_ordered {from_floor}')}, "
        f"{has(f'{_UNLEASED} AND d.is_ordered')}, {has(f'{_LIVING} AND d.leases > 0')}, "
        "r.version, r.access, greatest(0, extract(epoch FROM r.wait_until - clock_timestamp()))::float8, r.failures, "
        "coalesce(extract(epoch FROM clock_timestamp() - r.failing_since), 0)::float8, r.reason, "
        "coalesce(extract(epoch FROM r.next_at - clock_timestamp()), 0)::float8, statement_timestamp()::text"
    )


def _lease() -> str:
    return (
        f"/* lease */ {_LEASE} FROM (SELECT f.id FROM unnest(%(names)s::text[], %(counts)s::integer[], "
        "%(floors)s::timestamptz[]) AS a (destination, wanted, floor), LATERAL (SELECT d.id FROM {delivery} AS d "
        f"WHERE d.destination = a.destination AND NOT d.is_ordered AND {_LIVING} AND d.leases = 0 AND {_IS_DUE} "
        "AND d.available_at >= a.floor ORDER BY d.available_at, d.id LIMIT a.wanted FOR UPDATE SKIP LOCKED) AS f) "
        f"AS f WHERE d.id = f.id {_RETURNING}"
    )


def _lease_keys() -> str:
    """The first row of a key that is not dead, or is dead and blocks it, decides: whoever locks it has the key. A run
    ends at the first row that cannot be leased. A row without an id says where the next scan begins."""
    next_key = (
        "(SELECT d.key FROM {delivery} AS d WHERE d.destination = a.destination AND d.is_ordered "
        "AND (d.died_at IS NULL OR d.blocks_key) AND d.key > %s ORDER BY d.key LIMIT 1)"
    )
    may_be_leased = f"{_LIVING} AND d.leases = 0 AND {_IS_DUE}"
    return (
        "/* lease keys */ WITH RECURSIVE a AS (SELECT * FROM unnest(%(names)s::text[], %(counts)s::integer[], "
        "%(after)s::text[]) AS a (destination, wanted, after)), "
        f"k (destination, wanted, key, at) AS (SELECT a.destination, a.wanted, {next_key.replace('%s', 'a.after')}, 1 "
        f"FROM a UNION ALL SELECT a.destination, a.wanted, {next_key.replace('%s', 'a.key')}, a.at + 1 FROM k AS a "
        "WHERE a.key IS NOT NULL AND a.at < %(limit)s), "
        "h AS MATERIALIZED (SELECT k.destination, k.wanted, k.key, f.id, row_number() OVER (PARTITION BY k.destination "
        "ORDER BY f.available_at, f.id) AS nth FROM k, LATERAL (SELECT d.* FROM {delivery} AS d "
        "WHERE d.destination = k.destination AND d.is_ordered AND (d.died_at IS NULL OR d.blocks_key) "
        "AND d.key = k.key ORDER BY d.id LIMIT 1) AS f WHERE k.key IS NOT NULL "
        f"AND {may_be_leased.replace('d.', 'f.')}), "
        "l AS MATERIALIZED (SELECT d.id, d.destination, d.key, h.wanted FROM {delivery} AS d JOIN h ON h.id = d.id "
        f"WHERE h.nth <= h.wanted AND {may_be_leased} FOR UPDATE OF d SKIP LOCKED), "
        "c AS (SELECT l.*, count(*) OVER (PARTITION BY l.destination) AS heads FROM l), "
        "t AS (SELECT r.id FROM c, LATERAL (SELECT d.id, bool_and(d.id = c.id OR "
        f"({may_be_leased})) OVER (ORDER BY d.id) AS is_run FROM (SELECT d.* FROM {{delivery}} AS d "
        "WHERE d.destination = c.destination AND d.is_ordered AND (d.died_at IS NULL OR d.blocks_key) "
        "AND d.key = c.key AND d.id >= c.id ORDER BY d.id LIMIT greatest(1, c.wanted / c.heads)) AS d) AS r "
        "WHERE r.is_run), "
        f"u AS ({_LEASE} FROM t WHERE d.id = t.id AND {may_be_leased} {_RETURNING}) "
        "SELECT * FROM u UNION ALL SELECT NULL, k.destination, k.key, 0, 0, '', NULL, '', '', ''::bytea, '' FROM k "
        "WHERE k.at = %(limit)s AND k.key IS NOT NULL"
    )


def _lease_suspect() -> str:
    return (
        f"/* lease suspect */ {_LEASE} FROM (SELECT d.id FROM {{delivery}} AS d "
        f"WHERE d.destination = ANY (%(names)s::text[]) AND {_LIVING} AND d.leases > 0 AND {_IS_DUE} "
        "AND NOT (d.is_ordered AND EXISTS (SELECT FROM {delivery} AS e WHERE e.destination = d.destination "
        "AND e.is_ordered AND (e.died_at IS NULL OR e.blocks_key) AND e.key = d.key AND e.id < d.id)) "
        f"ORDER BY d.available_at, d.id LIMIT 1 FOR UPDATE SKIP LOCKED) AS f WHERE d.id = f.id {_RETURNING}"
    )


def _expire() -> str:
    return (
        "/* expire */ UPDATE {delivery} AS d SET lease_token = NULL, lease_until = NULL FROM (SELECT d.id "
        "FROM {delivery} AS d WHERE d.lease_token IS NOT NULL AND d.lease_until <= statement_timestamp() "
        "ORDER BY d.lease_until LIMIT %(limit)s FOR UPDATE SKIP LOCKED) AS f WHERE d.id = f.id RETURNING d.id"
    )


def _settle() -> str:
    return (
        "/* settle */ WITH gone AS (DELETE FROM {delivery} AS d "
        "USING unnest(%(gone)s::bigint[], %(gone_tokens)s::uuid[]) AS g (id, token) "
        "WHERE d.id = g.id AND d.lease_token = g.token RETURNING d.id), "
        "kept AS (UPDATE {delivery} AS d SET lease_token = NULL, lease_until = NULL, "
        "leases = CASE WHEN g.returned THEN d.leases - 1 ELSE 0 END, attempts = d.attempts + g.charged, "
        "charged_lease = CASE WHEN g.charged > 0 THEN g.token END, "
        "available_at = CASE WHEN g.returned THEN d.available_at "
        "ELSE clock_timestamp() + make_interval(secs => g.pause_s) END, "
        "failed_at = CASE WHEN g.returned THEN d.failed_at ELSE clock_timestamp() END, "
        "last_error = CASE WHEN g.returned THEN d.last_error ELSE g.error END, "
        "history = CASE WHEN g.returned THEN d.history ELSE {error} END, "
        "died_at = CASE WHEN g.reason <> '' THEN clock_timestamp() END, dead_reason = g.reason, "
        "blocks_key = g.blocks_key "
        "FROM unnest(%(kept)s::bigint[], %(kept_tokens)s::uuid[], %(returned)s::boolean[], %(charged)s::integer[], "
        "%(pauses)s::float8[], %(errors)s::text[], %(reasons)s::text[], %(blocks)s::boolean[]) "
        "AS g (id, token, returned, charged, pause_s, error, reason, blocks_key) "
        "WHERE d.id = g.id AND d.lease_token = g.token RETURNING d.id) "
        "SELECT id FROM gone UNION ALL SELECT id FROM kept"
    )


def _refund() -> str:
    """Of a charge that took effect, before the next lease, and once: a statement that is repeated, because its
    connection was lost, finds no token any more."""
    return (
        "/* refund */ UPDATE {delivery} AS d SET attempts = d.attempts - 1, charged_lease = NULL "
        "FROM unnest(%(ids)s::bigint[], %(tokens)s::uuid[]) AS g (id, token) WHERE d.id = g.id "
        "AND d.charged_lease = g.token AND d.died_at IS NULL RETURNING d.id"
    )


def _change() -> str:
    return (
        "/* destination */ INSERT INTO {destination} AS r "
        "(name, version, access, wait_until, failures, failing_since, reason) "
        "SELECT %(name)s, %(version)s, %(access)s, clock_timestamp() + make_interval(secs => %(wait_s)s), "
        "%(failures)s, CASE WHEN %(is_failing)s THEN clock_timestamp() END, %(reason)s "
        "WHERE %(expected)s = 0 OR EXISTS (SELECT FROM {destination} WHERE name = %(name)s) "
        "ON CONFLICT (name) DO UPDATE SET version = EXCLUDED.version, access = EXCLUDED.access, "
        "wait_until = EXCLUDED.wait_until, failures = EXCLUDED.failures, reason = EXCLUDED.reason, "
        "failing_since = CASE WHEN %(is_failing)s THEN coalesce(r.failing_since, EXCLUDED.failing_since) END "
        "WHERE r.version = %(expected)s AND (NOT %(needs_end)s OR r.wait_until <= clock_timestamp()) "
        "RETURNING r.version"
    )


def _reserve() -> str:
    return (
        "/* destination */ INSERT INTO {destination} AS r (name, next_at) "
        "VALUES (%(name)s, clock_timestamp() + make_interval(secs => %(taken_s)s)) "
        "ON CONFLICT (name) DO UPDATE SET "
        "next_at = greatest(r.next_at, clock_timestamp()) + make_interval(secs => %(taken_s)s) "
        "RETURNING greatest(0, extract(epoch FROM r.next_at - clock_timestamp())::float8 - %(taken_s)s)"
    )
