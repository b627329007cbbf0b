"""The statements of exactly-once delivery on the companion tables, and the guarded purge that ties them to the outbox.

``<TABLE>_state``: one row: the UUID of this database, the lane count, which delivery mode holds the table
(`edges.postgres.common.leases`). ``<TABLE>_purged``: (lane, batch): the last batch of each lane whose rows were
deleted, called m. ``<TABLE>_lane``: who owns a lane, shown to operators and never trusted
(`edges.postgres.common.leases`).

Each function takes a connection and decides nothing; what the numbers mean is said in `core.exactly_once.decisions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from outbox.core import times
from outbox.core.exactly_once.decisions import StateRow
from outbox.core.exactly_once.ledger import digest
from outbox.edges.postgres.at_least_once.marks import WrongTable
from outbox.edges.postgres.common import backends, int8_arrays, timestamps
from outbox.edges.postgres.common.int8_arrays import Ids
from outbox.edges.postgres.common.session import BoundedConnection
from outbox.edges.postgres.common.table import connect_session, identifier
from outbox.edges.postgres.common.timestamps import CREATED, Time
from outbox.edges.postgres.preflight import keepers
from outbox.edges.postgres.preflight.plans import Example
from outbox.exceptions import OutboxError

Connection = psycopg.Connection[Any]

# Over those of every connection of ours: one order of reading, no plan for many rows, and every commit flushed.
_OPTIONS = {
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "max_parallel_workers_per_gather": "0",
    "plan_cache_mode": "auto",
    "synchronous_commit": "on",
    "work_mem": "32MB",
}
_NEVER_BY_ITSELF = 1_000_000_000
# By the clock: two servers, one of which took over from a state before the other's change, draw different ones.
_NEW_NUMBER = (
    "greatest(resize_no + 1, %(newest)s::bigint + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)"
)


_SENT = "id = ANY(%(ids)s) AND create_time <= %(up_to)s AND isfinite(create_time) AND isfinite(%(up_to)s)"


class AnotherDatabase(OutboxError):
    """The connection reaches another database than the one that this process began with."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the table holds of some ids, and the file that held it a moment before."""

    count: int
    digest: int
    newest: int | None
    """create_time, see `core.times`."""
    filenode: int


def connect(source: Mapping[str, Any], *, statement_timeout_s: float, application_name: str) -> BoundedConnection:
    """A connection with a session of its own, whose statements are planned for a queue and whose commits are
    flushed."""
    # The locks of a process that stands still in a transaction keep its successor waiting.
    idle = {"idle_in_transaction_session_timeout": str(max(1, int(statement_timeout_s * 1000)))}
    connection = connect_session(
        source, statement_timeout_s=statement_timeout_s, application_name=application_name, settings=_OPTIONS | idle
    )
    connection.prepare_threshold = _NEVER_BY_ITSELF  # only where a statement asks for it
    int8_arrays.register(connection)
    timestamps.register(connection)
    return connection


class Companions:
    """Statements for one outbox table. `sequence` draws its ids, as `sequence_of` found it."""

    def __init__(self, table: str, sequence: str) -> None:
        self.table = table
        self._parts = {
            "table": identifier(table),
            "state": identifier(f"{table}_state"),
            "purged": identifier(f"{table}_purged"),
            "lane": identifier(f"{table}_lane"),
            "sequence": sql.SQL(sequence),
            "relation": sql.Literal(identifier(table).as_string()),
        }
        self._purge = self._build(
            "/* purge */ WITH last AS MATERIALIZED "
            "(SELECT batch FROM {purged} WHERE lane = %(lane)s ORDER BY batch DESC LIMIT 1), "
            "moved AS (INSERT INTO {purged} (lane, batch) SELECT %(lane)s, %(batch)s FROM last "
            "WHERE batch = %(batch)s - 1 AND pg_relation_filenode({relation}) = %(filenode)s "
            # Over a pooler, a connection may have come to another server since.
            f"AND {backends.BACKEND} = %(backend)s "
            # Ids above the sequence may be drawn a second time: then the rows are compared first.
            "AND (SELECT last_value FROM {sequence}) >= %(highest)s "
            "ON CONFLICT DO NOTHING RETURNING 1), "
            "old AS (DELETE FROM {purged} WHERE lane = %(lane)s AND batch = %(batch)s - 1 "
            "AND EXISTS (SELECT FROM moved)) "
            "DELETE FROM {table} WHERE id = ANY(%(ids)s) AND EXISTS (SELECT FROM moved)"
        )
        self._purge_plain = self._purge.replace(
            "ON CONFLICT",
            self._build(
                "AND EXISTS (SELECT FROM pg_class AS c WHERE c.oid = to_regclass({relation}) AND relkind = 'r' "
                "AND NOT (relhasrules OR relhassubclass OR relrowsecurity) AND NOT EXISTS "
                "(SELECT FROM pg_trigger WHERE tgrelid = c.oid AND tgtype & 11 = 11)) "  # BEFORE DELETE FOR EACH ROW
                "ON CONFLICT"
            ),
        )
        self._purge_counted = (
            self._purge.replace(
                self._build("DELETE FROM {table} WHERE"), self._build(", gone AS (DELETE FROM {table} WHERE")
            )
            + " RETURNING 1) SELECT (SELECT count(*) FROM moved), (SELECT count(*) FROM gone)"
        )
        self._look_up = self._build(
            "/* look up */ SELECT id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, "
            f"kafka_value_binary, {CREATED} FROM {{table}} WHERE id = ANY(%s) ORDER BY id"
        )

    def _build(self, text: str) -> str:
        return sql.SQL(text).format(**self._parts).as_string()

    def examples(self) -> list[Example]:
        """What is run with the ids of a batch, for a look at its plan."""
        ids = Ids(range(1, 1001))
        given = {"lane": 0, "batch": 1, "ids": ids, "filenode": 1, "highest": 1000, "backend": ""}
        return [
            Example("purge", self._purge_plain, given),
            Example("look up", self._look_up, [ids]),
        ]

    # ---- state

    def state(self, connection: Connection, lanes: int) -> tuple[UUID, StateRow]:
        """The database's UUID and its lane count; the row is made, with `lanes`, where it is missing."""
        statement = self._build("/* state */ SELECT database, lanes, resize_to, lanes_wanted, resize_no FROM {state}")
        row = connection.execute(statement).fetchone()
        if row is None:
            connection.execute(
                self._build("/* state */ INSERT INTO {state} (lanes) VALUES (%s) ON CONFLICT DO NOTHING"), [lanes]
            )
            row = connection.execute(statement).fetchone()
        if row is None:
            raise WrongTable(f"Something deletes the row of {self._parts['state'].as_string()} as soon as it is there.")
        return row[0], StateRow(*row[1:])

    # ---- the lane count

    def request(self, connection: Connection, lanes: int) -> None:
        """The owner of lane 0 is to change the count. The present count withdraws a request."""
        connection.execute(
            self._build("/* lanes */ UPDATE {state} SET lanes_wanted = %s, resize_note = ''"),
            [lanes],
        )

    def refuse_request(self, connection: Connection, lanes: int, note: str) -> None:
        """Nothing has begun, and nothing will."""
        connection.execute(
            self._build("/* lanes */ UPDATE {state} SET lanes_wanted = NULL, resize_note = %s WHERE lanes_wanted = %s"),
            [note, lanes],
        )

    def close_lanes(self, connection: Connection, lanes: int) -> bool:
        """From here on every owner that is initialised finds the lanes closed; False when the request is another
        now."""
        return bool(
            connection.execute(
                self._build(
                    "/* lanes */ UPDATE {state} SET resize_to = lanes_wanted, lanes_wanted = NULL, resize_note = '', "
                    f"resize_no = {_NEW_NUMBER} WHERE resize_to IS NULL AND lanes_wanted = %(lanes)s"
                ),
                {"lanes": lanes, "newest": 0},
            ).rowcount
        )

    def close_all_lanes(self, connection: Connection, before: int, newest: int) -> bool:
        """The row, as of change `before`, knows nothing of change `newest`: every lane that ever was is to be settled,
        for the count that the row has. A request is kept. False when somebody else has changed the row."""
        return bool(
            connection.execute(
                self._build(
                    "/* lanes */ UPDATE {state} SET lanes_wanted = coalesce(lanes_wanted, nullif(resize_to, lanes)), "
                    f"resize_to = lanes, resize_note = '', resize_no = {_NEW_NUMBER} WHERE resize_no = %(before)s"
                ),
                {"before": before, "newest": newest},
            ).rowcount
        )

    def open_lanes(
        self, connection: Connection, change: int, lanes: int, note: str = "", settled: Mapping[int, int] | None = None
    ) -> bool:
        """End the change of this number with so many lanes; False when somebody else has ended it, or when a lane is
        not purged up to the batch in `settled`: then this server took over after the settling, and lags behind it."""
        settled = settled or {}
        return bool(
            connection.execute(
                self._build(
                    "/* lanes */ UPDATE {state} SET lanes = %s, resize_to = NULL, resize_note = %s "
                    "WHERE resize_to IS NOT NULL AND resize_no = %s AND NOT EXISTS "
                    "(SELECT FROM unnest(%s::integer[], %s::bigint[]) AS settled (lane, batch) WHERE settled.batch > "
                    "coalesce((SELECT max(p.batch) FROM {purged} AS p WHERE p.lane = settled.lane), 0))"
                ),
                [lanes, note, change, list(settled), list(settled.values())],
            ).rowcount
        )

    def resize_note(self, connection: Connection) -> str:
        """Why the last request was not carried out; empty when it was."""
        row = connection.execute(self._build("/* lanes */ SELECT resize_note FROM {state}")).fetchone()
        return str(row[0]) if row else ""

    def owners(self, connection: Connection) -> list[tuple[int, str, float]]:
        """(lane, name, seconds since its heartbeat) of every lane that ever had an owner."""
        return connection.execute(
            self._build(
                "/* owners */ SELECT lane, owner_name, extract(epoch FROM clock_timestamp() - heartbeat)::float8 "
                "FROM {lane} ORDER BY lane"
            )
        ).fetchall()

    # ---- m

    def purged(self, connection: Connection, lane: int) -> int:
        """The lane's last purged batch; its row is made where the lane never had one."""
        statement = self._build("/* purged */ SELECT batch FROM {purged} WHERE lane = %s ORDER BY batch DESC LIMIT 1")
        row = connection.execute(statement, [lane]).fetchone()
        if row is None:
            connection.execute(
                self._build("/* purged */ INSERT INTO {purged} (lane, batch) VALUES (%s, 0) ON CONFLICT DO NOTHING"),
                [lane],
            )
            row = connection.execute(statement, [lane]).fetchone()
        return int(row[0]) if row else 0

    def purged_of_all(self, connection: Connection) -> dict[int, int]:
        """m of every lane that has a row."""
        rows = connection.execute(self._build("/* purged */ SELECT lane, max(batch) FROM {purged} GROUP BY lane"))
        return {int(lane): int(batch) for lane, batch in rows}

    def purge(
        self,
        connection: Connection,
        lane: int,
        batch: int,
        ids: Sequence[int],
        filenode: int,
        *,
        compared: bool = False,
    ) -> int:
        """Delete a batch's rows and move m to its number, both or neither; the number of rows deleted. `compared`: the
        rows under these ids were just looked up and are the ones that were sent."""
        given = _given(connection, lane, batch, ids, filenode)
        if compared:
            given["highest"] = 0
        return connection.execute(self._purge, given, prepare=True).rowcount

    def purge_plain(self, connection: Connection, lane: int, batch: int, ids: Sequence[int], filenode: int) -> int:
        """The same, where nothing can keep a row from being deleted: then one statement will do, which the server ends
        however long this process stands still. Elsewhere it does nothing."""
        given = _given(connection, lane, batch, ids, filenode)
        return connection.execute(self._purge_plain, given, prepare=True).rowcount

    def purge_counted(
        self, connection: Connection, lane: int, batch: int, ids: Sequence[int], filenode: int
    ) -> tuple[bool, int]:
        """The same, for a batch that may have no rows: whether m was moved, and the number of rows deleted."""
        row = connection.execute(self._purge_counted, _given(connection, lane, batch, ids, filenode)).fetchone()
        assert row is not None
        return bool(row[0]), int(row[1])

    def kept(self, connection: Connection, lane: int, batch: int, ids: Sequence[int], filenode: int) -> int:
        """How many rows of a batch are there, although m says that it is purged and the table's file is that one."""
        row = connection.execute(
            self._build(
                "/* kept */ SELECT count(*) FROM {table} WHERE id = ANY(%s) AND pg_relation_filenode({relation}) = %s "
                "AND EXISTS (SELECT FROM {purged} WHERE lane = %s AND batch = %s)"
            ),
            [Ids(ids), filenode, lane, batch],
        ).fetchone()
        return int(row[0]) if row else 0

    def sent(self, connection: Connection, ids: Sequence[int], up_to: int | None) -> int:
        """How many rows stand under these ids that are no younger than the newest of their batch. Where that has no
        date, or the row has none, time tells nothing. None: all of these ids."""
        where, given = _sent(ids, up_to)
        statement = self._build(f"/* sent */ SELECT count(*) FROM {{table}} WHERE {where}")
        row = connection.execute(statement, given).fetchone()
        return int(row[0]) if row else 0

    def delete_sent(self, connection: Connection, ids: Sequence[int], up_to: int | None) -> int:
        """Delete those rows: an operator said that they were delivered."""
        where, given = _sent(ids, up_to)
        return connection.execute(self._build(f"/* delete sent */ DELETE FROM {{table}} WHERE {where}"), given).rowcount

    def keep_file(self, connection: Connection, filenode: int) -> bool:
        """Whether the table has this file, as it then does until the transaction ends."""
        connection.execute(self._build("/* resolve */ LOCK TABLE {table} IN ROW EXCLUSIVE MODE"))
        row = connection.execute(
            self._build("/* resolve */ SELECT pg_relation_filenode({relation}) = %s"), [filenode]
        ).fetchone()
        return bool(row and row[0])

    def set_purged(self, connection: Connection, lane: int, before: int, after: int) -> bool:
        """Set m by hand, inside a transaction; False when it is not `before` any more."""
        rows = connection.execute(
            self._build("/* resolve */ SELECT batch FROM {purged} WHERE lane = %s FOR UPDATE"), [lane]
        ).fetchall()
        if max((row[0] for row in rows), default=0) != before:
            return False
        connection.execute(self._build("/* resolve */ DELETE FROM {purged} WHERE lane = %s"), [lane])
        connection.execute(
            self._build("/* resolve */ INSERT INTO {purged} (lane, batch) VALUES (%s, %s)"), [lane, after]
        )
        return True

    def look_up(self, connection: Connection, ids: Sequence[int]) -> Found:
        # The file first: if it changes before the rows are read, the guard of the purge notices.
        filenode = connection.execute(
            self._build("/* look up */ SELECT pg_relation_filenode({relation})::bigint")
        ).fetchone()
        assert filenode is not None
        rows = connection.execute(self._look_up, [Ids(ids)], binary=True).fetchall()
        return Found(len(rows), digest(rows), times.newest(rows) if rows else None, filenode[0])

    def why_kept(self, connection: Connection, count: int) -> str:
        """What keeps so many rows that were deleted, and the remedy."""
        return str(keepers.kept(connection, self.table, count, marks=False))

    # ---- the connection

    def flush(self, connection: Connection) -> None:
        """Whatever this server's transactions have shown until now is on its disk afterwards."""
        row = connection.execute(
            f"/* flush */ SELECT {backends.BACKEND}, pg_logical_emit_message(true, 'outbox', '')", prepare=True
        ).fetchone()
        assert row is not None
        backends.require(connection, row[0])

    def allow(self, connection: Connection, timeout_s: float | None) -> None:
        """A read may take so long, on the server; None: as long as any statement."""
        if timeout_s is None:
            connection.execute("/* read */ RESET statement_timeout")
        else:
            connection.execute(f"/* read */ SET statement_timeout = {int(timeout_s * 1000)}")

    def require_backend(self, connection: Connection, found: str | None = None) -> None:
        """Raises `OtherBackend` unless `found`, or who answers now, is the backend with which the connection began."""
        backends.require(connection, found)


def _given(connection: Connection, lane: int, batch: int, ids: Sequence[int], filenode: int) -> dict[str, Any]:
    """What a purge is told."""
    return {
        "lane": lane,
        "batch": batch,
        "ids": Ids(ids),
        "filenode": filenode,
        "highest": ids[-1] if ids else 0,
        "backend": backends.of(connection),
    }


def _sent(ids: Sequence[int], up_to: int | None) -> tuple[str, dict[str, Any]]:
    if up_to is None:
        return "id = ANY(%(ids)s)", {"ids": Ids(ids)}
    return _SENT, {"ids": Ids(ids), "up_to": Time(up_to)}


def sequence_of(connection: Connection, table: str) -> str:
    """The quoted name of the sequence that draws the table's ids; says what is missing when something is."""
    name = identifier(table).as_string()
    row = connection.execute(
        "/* tables */ SELECT to_regclass(%(table)s) IS NOT NULL, to_regclass(%(state)s) IS NOT NULL "
        "AND to_regclass(%(purged)s) IS NOT NULL AND to_regclass(%(lane)s) IS NOT NULL, "
        "CASE WHEN to_regclass(%(table)s) IS NOT NULL THEN pg_get_serial_sequence(%(table)s, 'id') END",
        {
            "table": name,
            **{part: identifier(f"{table}_{part}").as_string() for part in ("state", "purged", "lane")},
        },
    ).fetchone()
    assert row is not None
    if not row[0]:
        raise WrongTable(f"The table {name} does not exist. Run migrate, or correct TABLE and the database.")
    if not row[1]:
        raise WrongTable(
            f"One or more companion tables of {name} are missing ({table}_state, {table}_purged, {table}_lane). "
            "Run: python manage.py migrate outbox"
        )
    if row[2] is None:
        raise WrongTable(f"No sequence belongs to the id of {name}. Run: python manage.py migrate outbox")
    return str(row[2])
