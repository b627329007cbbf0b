"""The statements of the Spark source on the outbox table and on `<TABLE>_spark`, its one row of state.

A batch is the records of one micro-batch, marked with a `leader_id` of its own. The row names the last batch marked
and, while its records are there, the one before; `owner` is the driver that may mark. Every statement of a driver
compares the owner. So a driver that was paused and resumed marks, plans and purges nothing once another one has taken
the table.

`planned` becomes true when Spark has logged the batch and asks for its partitions: only then may its records be on
their way to Kafka. A mark that was not planned belongs to nobody, and the driver marks again.

While marked records may be in Kafka already, the source holds the table's lease without end (`lease_time` in the year
9999): another delivery mode would send them again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from outbox.edges.postgres.at_least_once.marks import WrongTable
from outbox.edges.postgres.common import sizes
from outbox.edges.postgres.common.leases import TableLease, settled_after
from outbox.edges.postgres.common.session import BoundedConnection
from outbox.edges.postgres.common.table import connect_bounded, connect_session, identifier
from outbox.edges.postgres.common.timestamps import KNOWN
from outbox.edges.postgres.preflight import keepers, numbering
from outbox.exceptions import OutboxError
from outbox.spark.source.holds import FREE

logger = logging.getLogger("outbox.spark")

MODE = "spark"
_HELD = "9999-01-01 00:00:00+00"
_PATIENCE_S = 15.0
_TRANSACTION_S = 15.0  # the default TRANSACTION_TIMEOUT: a query has no settings of Django
_POLL_S = 0.1
OUTAGES = (psycopg.OperationalError, psycopg.InterfaceError)
Connection = psycopg.Connection[Any]


class Fenced(OutboxError):
    """Another driver has taken the table over; this one must stop."""


class CheckpointLost(OutboxError):
    """The checkpoint does not know of records that may be in Kafka."""


class RecordsMissing(OutboxError):
    """Records of a batch are no longer there, or another process has marked them."""


@dataclass(frozen=True, slots=True)
class MarkedBatch:
    """The marked records that an offset in the checkpoint names."""

    number: int
    leader: str = ""
    """Empty: the place before the first batch of a checkpoint."""
    lowest: int = 0
    highest: int = 0
    count: int = 0

    def offset(self) -> dict[str, Any]:
        return {
            "batch": self.number,
            "leader": self.leader,
            "lowest": self.lowest,
            "highest": self.highest,
            "count": self.count,
        }

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> MarkedBatch:
        return cls(offset["batch"], offset["leader"], offset["lowest"], offset["highest"], offset["count"])


@dataclass(frozen=True, slots=True)
class QueryState:
    """The row."""

    owner: str
    last: MarkedBatch
    is_planned: bool
    is_purged: bool
    prior: MarkedBatch | None
    """The batch before the last, while it is not purged."""


def connect(url: str, statement_timeout_s: float, *, own_session: bool = False) -> BoundedConnection:
    """`own_session`: for the process that marks. Refused if a pooler shares the connection."""
    return (connect_session if own_session else connect_bounded)(
        conninfo_to_dict(url),
        statement_timeout_s=statement_timeout_s,
        application_name="outbox spark",
        settings={"synchronous_commit": "on"},
    )


_UNMARKED = "(o.leader_id IS NULL OR o.leader_id <> ALL(%(kept)s::uuid[]))"
# One walk along the index instead of a descent for each id. The same predicate in the same snapshot finds the same
# rows. Both ends are given, so that the planner expects a part of the table and uses the index.
_FEW = (
    "few AS MATERIALIZED (SELECT min(id) AS lowest, max(id) AS highest FROM (SELECT o.id FROM {table} AS o "
    "WHERE EXISTS (SELECT FROM held) AND " + _UNMARKED + " ORDER BY o.id LIMIT %(limit)s) AS first), "
)
_BY_RANGE = "(o.id BETWEEN (SELECT lowest FROM few) AND (SELECT highest FROM few) AND " + _UNMARKED + ")"
# Holds are checked once per row, because the check is expensive.
_ONE_BY_ONE = (
    "o.id = ANY(ARRAY(SELECT o.id FROM {table} AS o WHERE " + _UNMARKED + "{free} ORDER BY o.id LIMIT %(limit)s))"
)


class Stream:
    """Statements for one table."""

    def __init__(self, table: str) -> None:
        self.table = table
        self._parts = {
            "table": identifier(table),
            "state": identifier(f"{table}_state"),
            "spark": identifier(f"{table}_spark"),
            "hold": identifier(f"{table}_hold"),
            "held": sql.Literal(_HELD),
        }
        mark = (
            "/* mark */ WITH held AS MATERIALIZED "
            "(SELECT 1 FROM {spark} WHERE owner = %(owner)s AND batch = %(before)s AND NOT paused FOR UPDATE), "
            "{few}marked AS (UPDATE {table} AS o SET leader_id = %(leader)s WHERE EXISTS (SELECT FROM held) "
            "AND {which} RETURNING o.id), "
            "found AS MATERIALIZED (SELECT min(id) AS lowest, max(id) AS highest, count(*) AS count, "
            "array_agg(id ORDER BY id) AS ids, greatest(1, (count(*) + %(slices)s - 1) / %(slices)s) AS width "
            "FROM marked), "
            "noted AS (UPDATE {spark} AS s SET batch = s.batch + 1, leader_id = %(leader)s, lowest = found.lowest, "
            "highest = found.highest, count = found.count, planned = false, purged = false, "
            "prior_leader_id = %(prior)s, prior_lowest = %(prior_lowest)s, prior_highest = %(prior_highest)s, "
            "prior_count = %(prior_count)s, marked_at = clock_timestamp() "
            "FROM found WHERE found.count > 0 AND s.owner = %(owner)s RETURNING 1), "
            "kept AS (UPDATE {state} SET lease_time = {held} WHERE lease_owner = %(owner)s AND EXISTS "
            "(SELECT FROM noted) RETURNING 1) "
            "SELECT lowest, highest, count, (SELECT count(*) FROM noted), "
            "ARRAY(SELECT ids[n::int] FROM generate_series(1, count, width) AS n), "
            "ARRAY(SELECT ids[least(n + width - 1, count)::int] FROM generate_series(1, count, width) AS n), width "
            "FROM found"
        )
        self._mark = self._build(mark, few=self._built(_FEW), which=self._built(_BY_RANGE))
        self._mark_free = self._build(mark, few=sql.SQL(""), which=self._built(_ONE_BY_ONE, free=self._built(FREE)))

    def _build(self, text: str, **parts: sql.Composable) -> str:
        return self._built(text, **parts).as_string()

    def _built(self, text: str, **parts: sql.Composable) -> sql.Composed:
        return sql.SQL(text).format(**self._parts, **parts)

    # ---- who may mark

    def take(self, connection: Connection, owner: str) -> QueryState:
        """From here on only `owner` marks. Refused while another delivery mode is active."""
        self._inspect(connection)
        notes = keepers.check(connection, self.table, marks=True)
        for note in (*notes, *numbering.check(connection, self.table, exactly_once=False)):
            logger.warning("table_warning table=%s reason=%r", self.table, note)
        with connection.transaction():
            TableLease(self.table, MODE, owner, _PATIENCE_S, settled_s=settled_after(_TRANSACTION_S)).take(connection)
            connection.execute(self._build("/* take */ INSERT INTO {spark} DEFAULT VALUES ON CONFLICT DO NOTHING"))
            connection.execute(self._build("/* take */ UPDATE {spark} SET owner = %s, paused = false"), [owner])
            connection.execute(
                self._build(
                    "/* take */ UPDATE {state} SET lease_time = {held} WHERE EXISTS "
                    "(SELECT FROM {spark} WHERE NOT purged OR prior_leader_id IS NOT NULL)"
                )
            )
        return self.state(connection)

    def _inspect(self, connection: Connection) -> None:
        names = [self._parts[part].as_string() for part in ("table", "state", "spark")]
        row = connection.execute(
            "/* tables */ SELECT array(SELECT name FROM unnest(%s::text[]) AS t(name) WHERE to_regclass(name) IS NULL)",
            [names],
        ).fetchone()
        if row and row[0]:
            raise WrongTable(
                f"The Spark source needs the tables {', '.join(row[0])}, which the database does not have. Run: "
                "python manage.py migrate outbox. Or correct the options table and url."
            )

    def state(self, connection: Connection) -> QueryState:
        row = connection.execute(
            self._build(
                "/* state */ SELECT owner, batch, leader_id, lowest, highest, count, planned, purged, "
                "prior_leader_id, prior_lowest, prior_highest, prior_count FROM {spark}"
            )
        ).fetchone()
        if row is None:
            raise WrongTable(
                f"Somebody deleted the row of {self._parts['spark'].as_string()} while the query ran. "
                "Start the query again."
            )
        prior = MarkedBatch(row[1] - 1, str(row[8]), *row[9:]) if row[8] else None
        return QueryState(row[0], MarkedBatch(row[1], str(row[2] or ""), *row[3:6]), row[6], row[7], prior)

    def beat(self, connection: Connection, owner: str) -> None:
        """Renew the lease for other modes to see. Raises when another driver has the table."""
        done = connection.execute(
            self._build(
                "/* beat */ UPDATE {state} SET lease_time = greatest(lease_time, clock_timestamp()) "
                "WHERE lease_owner = %s"
            ),
            [owner],
        ).rowcount
        if not done:
            raise self.fenced(owner)

    def release(self, connection: Connection, owner: str) -> None:
        """Another mode may begin at once, unless marked records may be in Kafka."""
        connection.execute(
            self._build(
                "/* release */ UPDATE {state} SET lease_time = '-infinity' "
                "WHERE lease_mode = %s AND lease_owner = %s AND lease_time <> {held}"
            ),
            [MODE, owner],
        )

    def fenced(self, owner: str) -> Fenced:
        return Fenced(
            f"Another driver has taken over the outbox table {self._parts['table'].as_string()} from {owner!r}: a "
            "table has one Spark query. This query stops, and no record is lost."
        )

    # ---- mark, plan, purge

    def mark(
        self,
        connection: Connection,
        owner: str,
        before: int,
        leader: UUID,
        limit: int,
        prior: MarkedBatch | None,
        slices: int,
        *,
        is_any_held: bool = False,
    ) -> tuple[MarkedBatch, list[tuple[int, int, int]]] | None:
        """Mark the next batch, in id order, and cut it as `starts` does. None: the table has no record, or this driver
        must not mark (see `beat`). Marks of others than `prior` are taken over: their owners are gone. `is_any_held`:
        whether to leave out held records, which costs a query of the holds per row."""
        row = connection.execute(
            self._mark_free if is_any_held else self._mark,
            {
                "owner": owner,
                "before": before,
                "leader": leader,
                "limit": limit,
                "slices": slices,
                "kept": [prior.leader] if prior else [],
                "prior": prior.leader if prior else None,
                "prior_lowest": prior.lowest if prior else 0,
                "prior_highest": prior.highest if prior else 0,
                "prior_count": prior.count if prior else 0,
            },
        ).fetchone()
        assert row is not None
        lowest, highest, count, is_noted, firsts, lasts, width = row
        if not is_noted:
            return None
        counts = [min(width, count - begin) for begin in range(0, count, width)]
        cut = list(zip(firsts, lasts, counts, strict=True))
        return MarkedBatch(before + 1, str(leader), lowest, highest, count), cut

    def plan(self, connection: Connection, owner: str, batch: MarkedBatch) -> None:
        """Spark has logged this batch and will read it."""
        done = connection.execute(
            self._build(
                "/* plan */ UPDATE {spark} SET planned = planned OR leader_id = %(leader)s "
                "WHERE owner = %(owner)s AND (leader_id = %(leader)s AND NOT purged OR prior_leader_id = %(leader)s)"
            ),
            {"leader": batch.leader, "owner": owner},
        ).rowcount
        if done:
            return
        if self.state(connection).owner != owner:
            raise self.fenced(owner)
        raise RecordsMissing(
            f"The checkpoint asks for batch {batch.number} (leader_id {batch.leader}), but this database has purged "
            "it or never marked it. Check that this is the right database and the newest copy of the checkpoint."
        )

    def starts(self, connection: Connection, batch: MarkedBatch, slices: int) -> list[tuple[int, int, int]]:
        """(lowest, highest, count) of ranges of ids that hold about equally many records of the batch."""
        width = max(1, -(-batch.count // slices))
        rows = connection.execute(
            self._build(
                "/* split */ SELECT min(id), max(id), count(*) FROM (SELECT id, (row_number() OVER (ORDER BY id) - 1) "
                "/ %(width)s AS part FROM {table} WHERE id BETWEEN %(lowest)s AND %(highest)s "
                "AND leader_id = %(leader)s) AS numbered GROUP BY part ORDER BY part"
            ),
            {"width": width, "lowest": batch.lowest, "highest": batch.highest, "leader": batch.leader},
        ).fetchall()
        found = sum(row[2] for row in rows)
        if found != batch.count:
            raise RecordsMissing(
                f"The driver marked batch {batch.number} with {batch.count} records, but the table has {found} of "
                f"them with its leader_id {batch.leader}: somebody deleted, changed or marked the others. Put them "
                "back as they were. Or start again with a new checkpoint and another sink name, and set the option "
                'resend="true": the query sends those that are left, even if they are in Kafka already.'
            )
        return [(row[0], row[1], row[2]) for row in rows]

    def purge(self, connection: Connection, owner: str, batch: MarkedBatch) -> int | None:
        """Delete a batch that Spark has finished. None: it was purged before, or another driver has taken over. Raises
        `RowsKept` when some of its rows survive: then it counts as not purged."""
        with connection.transaction():
            gone = self._delete(connection, owner, batch)
            if gone is not None and gone < batch.count and (kept := self._left(connection, batch)):
                raise keepers.kept(connection, self.table, kept, marks=True)
        return gone

    def _left(self, connection: Connection, batch: MarkedBatch) -> int:
        row = connection.execute(
            self._build(
                "/* kept */ SELECT count(*) FROM {table} WHERE id BETWEEN %(lowest)s AND %(highest)s "
                "AND leader_id = %(leader)s"
            ),
            {"leader": batch.leader, "lowest": batch.lowest, "highest": batch.highest},
        ).fetchone()
        return int(row[0]) if row else 0

    def _delete(self, connection: Connection, owner: str, batch: MarkedBatch) -> int | None:
        row = connection.execute(
            self._build(
                "/* purge */ WITH held AS (UPDATE {spark} SET purged = purged OR leader_id = %(leader)s, "
                "prior_leader_id = NULLIF(prior_leader_id, %(leader)s) WHERE owner = %(owner)s "
                "AND (leader_id = %(leader)s AND NOT purged OR prior_leader_id = %(leader)s) "
                "RETURNING purged AND prior_leader_id IS NULL AS idle), "
                "freed AS (UPDATE {state} SET lease_time = clock_timestamp() WHERE lease_owner = %(owner)s "
                "AND EXISTS (SELECT FROM held WHERE idle)), "
                "gone AS (DELETE FROM {table} WHERE id BETWEEN %(lowest)s AND %(highest)s AND leader_id = %(leader)s "
                "AND EXISTS (SELECT FROM held) RETURNING 1) "
                "SELECT (SELECT count(*) FROM held), (SELECT count(*) FROM gone)"
            ),
            {"leader": batch.leader, "owner": owner, "lowest": batch.lowest, "highest": batch.highest},
        ).fetchone()
        assert row is not None
        return int(row[1]) if row[0] else None

    # ---- a clean end

    def pause(self, connection: Connection, owner: str = "") -> bool:
        """The source marks no further batch; it finishes and purges the current one. `owner`: how the owner's name must
        begin; False when another driver has the table."""
        text = "/* pause */ UPDATE {spark} SET paused = true WHERE starts_with(owner, %s)"
        return bool(connection.execute(self._build(text), [owner]).rowcount)

    def is_idle(self, connection: Connection) -> bool:
        found = self.state(connection)
        return found.prior is None and found.is_purged


def finish(url: str, table: str = "outbox", timeout_s: float = 60.0, owner: str = "") -> bool:
    """Let the running query end its batch and purge it, and mark no other. Returns whether that happened in time. Call
    it before `query.stop()`: then no record is left behind that is in Kafka already. The next start marks again.

    `owner`: the source's option of this name. Give it if another driver may have the table, which is then left alone.
    """
    stream, give_up_at = Stream(table), time.monotonic() + timeout_s
    connection = connect(url, timeout_s)
    try:
        if not stream.pause(connection, owner):
            return True
        while not (idle := stream.is_idle(connection)) and time.monotonic() < give_up_at:
            time.sleep(_POLL_S)
        return idle
    finally:
        connection.close()


# ---- what executors read

TEXT = "kafka_value::text"


def select(table: str, leader: str, *, binary: bool = True) -> str:
    """The first rows of a range of ids, in order. Only the last row may go beyond the given bytes. Rows of one batch,
    or of all batches when `leader` is empty."""
    value = f"coalesce(kafka_value_binary, textsend({TEXT}))" if binary else f"textsend({TEXT})"
    return (
        sql.SQL(
            f"/* read */ SELECT id, timestamptz_send({KNOWN}), kafka_topic, kafka_key, "
            + value
            + ", NULLIF(kafka_header_keys, '{{}}'), NULLIF(kafka_header_values, '{{}}') FROM "
            "(SELECT *, sum(size) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) - size AS before FROM "
            f"(SELECT *, {sizes.of_record(binary=binary)} AS size FROM {{table}} "
            "WHERE id BETWEEN %(lowest)s AND %(highest)s"
            + (" AND leader_id = %(leader)s" if leader else "")
            + " ORDER BY id LIMIT %(limit)s) AS page) AS sized WHERE before < %(bytes)s ORDER BY id"
        )
        .format(table=identifier(table))
        .as_string()
    )


def has_binary(connection: Connection, table: str) -> bool:
    """Whether the table has the column for binary values. The goharvest-compatible layout has none."""
    row = connection.execute(
        "/* columns */ SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass(%s) "
        "AND attname = 'kafka_value_binary' AND NOT attisdropped)",
        [identifier(table).as_string()],
    ).fetchone()
    return bool(row and row[0])


def ranges(connection: Connection, table: str, slices: int) -> Sequence[tuple[int, int]]:
    """The whole table, cut into ranges of ids."""
    row = connection.execute(
        sql.SQL("/* range */ SELECT min(id), max(id) FROM {}").format(identifier(table))
    ).fetchone()
    if row is None or row[0] is None:
        return []
    lowest, highest = row
    width = max(1, -(-(highest - lowest + 1) // slices))
    return [(start, min(start + width - 1, highest)) for start in range(lowest, highest + 1, width)]
