"""The lease on a table: one delivery mode and one NAME at a time. The state row of the table holds it, and its time is
that of the database's clock.

NAME is the name of the consumer group, and of the ledger. Processes with another NAME elect owners of their own, and do
not know what has been sent under this one.

Every mode (exactly-once, at-least-once, Spark) takes the lease with the same statement. A table of the
goharvest-compatible layout has no state row. There the modes do not know of each other, and `take` returns False."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from outbox.edges.postgres.common.table import identifier
from outbox.exceptions import NotAvailable, OutboxError

Connection = psycopg.Connection[Any]
_EXACTLY_ONCE = "exactly-once"  # whose transaction may outlive its lease
_SPARK = "spark"  # whose lease ends only when what it has marked is purged
PRIVILEGES = "SELECT, INSERT, UPDATE, DELETE"
_TAKE = (
    "UPDATE {state} SET lease_mode = %(mode)s, lease_owner = %(owner)s, lease_time = clock_timestamp(), "
    "name = %(name)s, keep_empty_key = coalesce(%(keep)s::boolean, keep_empty_key) WHERE lease_mode = '' "
    "OR lease_time < clock_timestamp() - make_interval(secs => %(patience)s + "
    "CASE WHEN lease_mode = %(exact)s AND NOT (<same>) THEN %(settled)s ELSE 0 END)"
)
# Records without key have another lane with the other formula: two processes would both send them, or neither would.
_SAME = "lease_mode = %(mode)s AND coalesce(keep_empty_key = %(keep)s, true) AND name = %(name)s"
_SHOW = (
    "WITH taken AS (<take> RETURNING 1) INSERT INTO {lane} (lane, owner, owner_name, heartbeat) "
    "SELECT lane, owner, %(owner)s, clock_timestamp() FROM unnest(%(lanes)s::int[], %(ids)s::uuid[]) AS t(lane, owner) "
    "WHERE EXISTS (SELECT FROM taken) ORDER BY lane ON CONFLICT (lane) "
    "DO UPDATE SET owner = EXCLUDED.owner, owner_name = EXCLUDED.owner_name, heartbeat = EXCLUDED.heartbeat"
)


BROKERS_LOOK_S = 10.0
"""How often brokers check for transactions that took too long, by their default
(transaction.abort.timed.out.transaction.cleanup.interval.ms)."""


def settled_after(transaction_timeout_s: float) -> float:
    """How long after an exactly-once lease became old its owner may still commit, if it was paused in the middle of a
    transaction. Another mode that began before would send the same records."""
    return transaction_timeout_s + BROKERS_LOOK_S


class OtherMode(NotAvailable):
    """The table is being harvested in another mode."""


class NoPrivileges(OutboxError):
    """The database role may not use the companion tables."""


class TableLease:
    """The lease that one process, called `owner`, shows to all others of the table. It ends unless the process renews
    it within `patience_s`."""

    def __init__(
        self,
        table: str,
        mode: str,
        owner: str,
        patience_s: float,
        *,
        keep_empty_key: bool | None = None,
        settled_s: float = 0.0,
        name: str = "",
    ) -> None:
        """`name`: that of the processes that elect owners together; empty: this one elects none. `keep_empty_key`: the
        formula by which this process divides records into lanes; None: it has no lanes, and the noted formula stays.
        `settled_s`: how much longer a lease of exactly-once delivery counts for other modes, see `settled_after`."""
        self.mode, self.owner = mode, owner
        self._table, self._patience_s, self._keep = table, patience_s, keep_empty_key
        self._settled_s, self._name = settled_s, name
        self._given = {"mode": mode, "owner": owner, "patience": patience_s, "keep": keep_empty_key, "name": name}
        self._given |= {"settled": settled_s, "exact": _EXACTLY_ONCE}
        self._parts = {name: identifier(f"{table}_{name}") for name in ("state", "lane")}
        self._exists = False

    def take(
        self,
        connection: Connection,
        *,
        lanes: int = 1,
        quietly: bool = False,
        owned: Mapping[int, UUID] = MappingProxyType({}),
    ) -> bool:
        """Take the lease on the table, or renew it; False where the table has no state row. Raises `OtherMode` while
        the lease of another mode, NAME or formula of lanes is fresh.
        `quietly`: leave the fresh lease of another process of this mode as it is.

        `owned`: the lanes on which this process works, with their ids, shown to operators and to the processes of this
        mode. One statement writes lease and lanes, as both are renewed all the time. `lanes` is for a row that does not
        exist yet.
        """
        try:
            if not self._has_tables(connection):
                return False
            while not self._taken(connection, owned, quietly=quietly):
                self._run(connection, "INSERT INTO {state} (lanes) VALUES (%s) ON CONFLICT DO NOTHING", [lanes])
        except psycopg.errors.UndefinedTable:
            self._exists = False
            raise
        except psycopg.errors.InsufficientPrivilege as error:
            names = ", ".join(part.as_string() for part in self._parts.values())
            raise NoPrivileges(
                f"PostgreSQL denies the role of this connection a companion table of {self._table!r}: "
                f"{str(error).strip()}. The companion tables record which delivery mode has the table. "
                f"Run, as the owner of the tables: GRANT {PRIVILEGES} ON {names} TO the role of the harvester."
            ) from error
        return True

    def _has_tables(self, connection: Connection) -> bool:
        if not self._exists:
            row = connection.execute(
                "/* lease */ SELECT to_regclass(%(state)s) IS NOT NULL AND to_regclass(%(lane)s) IS NOT NULL",
                {name: part.as_string() for name, part in self._parts.items()},
            ).fetchone()
            assert row is not None
            self._exists = row[0]
        return self._exists

    def _taken(self, connection: Connection, owned: Mapping[int, UUID], *, quietly: bool) -> bool:
        """False when there is no row."""
        statement = _TAKE.replace("<same>", _SAME) + ("" if quietly else f" OR ({_SAME})")
        given = {**self._given, "lanes": list(owned), "ids": list(owned.values())}
        if self._run(connection, _SHOW.replace("<take>", statement) if owned else statement, given).rowcount:
            return True
        row = self._run(
            connection,
            "SELECT lease_mode, lease_owner, "
            "round(extract(epoch FROM clock_timestamp() - least(greatest(lease_time, 'epoch'), '9999-12-31')), 1), "
            "keep_empty_key, name FROM {state}",
        ).fetchone()
        if row is not None and row[0] == "":
            return False  # another process has inserted it meanwhile, and none has the lease yet
        patience_s = self._patience_s + (self._settled_s if row is not None and row[0] == _EXACTLY_ONCE else 0)
        if row is not None and row[0] == _SPARK != self.mode and row[2] < 0:
            raise OtherMode(
                f"{row[1]!r} holds the table {self._table!r} for {row[0]!r} and has marked records that are not purged "
                f"yet. This process is for {self.mode!r}. The lease stays even if that process has crashed: start its "
                "query again, and end it with outbox.spark.stream.finish()."
            )
        if row is not None and row[0] != self.mode:
            raise OtherMode(
                f"{row[1]!r} harvests the table {self._table!r} with DELIVERY={row[0]!r}; its last heartbeat is "
                f"{row[2]} s old. This process is for {self.mode!r}. Two modes at once would send records twice. "
                f"Stop the other process. If it ends cleanly, this one begins at once, otherwise {patience_s:g} s "
                "after its last heartbeat."
            )
        if row is not None and self._keep is not None and row[3] is (not self._keep):
            raise OtherMode(
                f"{row[1]!r} harvests the table {self._table!r} with KEEP_EMPTY_KEY={row[3]}; its last heartbeat is "
                f"{row[2]} s old. This process has KEEP_EMPTY_KEY={self._keep}. Records without a key would belong to "
                "two lanes, and be sent twice or not at all. Give every process the same KEEP_EMPTY_KEY, or stop the "
                f"others. If they end cleanly, this process begins at once, otherwise {patience_s:g} s after their "
                "last heartbeat."
            )
        if row is not None and row[4] != self._name:
            raise OtherMode(
                f"{row[1]!r} harvests the table {self._table!r} with NAME={row[4]!r}; its last heartbeat is {row[2]} s "
                f"old. This process has NAME={self._name!r}. Each would elect owners of its own, and records would be "
                "sent twice. Give every process of this table the same NAME in OUTBOX, or stop the others. If they end "
                f"cleanly, this process begins at once, otherwise {patience_s:g} s after their last heartbeat."
            )
        return row is not None

    def database(self, connection: Connection) -> UUID | None:
        """The number of the database, where there is a state row."""
        row = self._run(connection, "SELECT database FROM {state}").fetchone() if self._has_tables(connection) else None
        return row[0] if row else None

    def release(self, connection: Connection) -> None:
        """Give the lease back, so that no mode waits until it is old; not while another process of this mode works on a
        lane."""
        if not self._has_tables(connection):
            return
        self._run(connection, "DELETE FROM {lane} WHERE owner_name = %(owner)s", self._given)
        self._run(
            connection,
            "UPDATE {state} SET lease_time = '-infinity' WHERE lease_mode = %(mode)s AND name = %(name)s "
            "AND NOT EXISTS (SELECT FROM {lane} "
            "WHERE heartbeat > clock_timestamp() - make_interval(secs => %(patience)s))",
            self._given,
        )

    def _run(self, connection: Connection, text: str, given: Any = None) -> Any:
        return connection.execute(sql.SQL(f"/* lease */ {text}").format(**self._parts), given)
