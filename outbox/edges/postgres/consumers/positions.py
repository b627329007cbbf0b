"""The statements on `<TABLE>_position`: where each consumer reads each partition next.

A row is moved by inserting the next one and deleting the one before, so whoever wants the newest row finds it at the
end of the index, also while an old transaction elsewhere keeps PostgreSQL from removing the dead ones. Each function
takes a Django connection and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db import transaction
from psycopg import sql

from outbox.core.consumers.values import Partition, Position
from outbox.edges.postgres.common.table import identifier

NAME_BYTES = 63
"""PostgreSQL cuts the name of an application there."""
_CREATE_LOCK = 0x6F757470

# `Transaction.begin` has limited how long this lock is waited for; the functions that come next may wait.
_PATIENT = "/* position */ SET LOCAL lock_timeout TO DEFAULT"
_NEWEST = (
    "FROM unnest(%(topics)s::text[], %(partitions)s::integer[]) WITH ORDINALITY AS asked (topic, partition, at), "
    "LATERAL (SELECT p.next, p.topic_id, p.leader_epoch, p.xmin, p.xmax FROM {position} AS p "
    "WHERE p.consumer = %(consumer)s AND p.topic = asked.topic AND p.partition = asked.partition "
    "ORDER BY p.next DESC LIMIT 1{lock}) AS found"
)


def application_name(consumer: str) -> str:
    """Of the sessions in which a consumer's functions run: whoever waits for one of them knows it by this name."""
    return f"outbox consumer {consumer}".encode("ascii", "replace")[:NAME_BYTES].decode()


class Positions:
    """Of the consumers that share one outbox table."""

    def __init__(self, table: str, *, session_timeout_s: float) -> None:
        """A lock of a row is waited for as long as a session lasts, then 55P03 is raised."""
        self._lock_timeout = str(int(session_timeout_s * 1000))
        position = identifier(f"{table}_position")

        def build(text: str, lock: str = "") -> str:
            return sql.SQL(text).format(position=position, lock=sql.SQL(lock)).as_string()

        # Without those of replays, which are under the name of the consumer, `#` and a number.
        self._topics = build(
            "/* position */ SELECT DISTINCT consumer, topic FROM {position} WHERE position('#' IN consumer) = 0"
        )
        self._everything = build(
            "/* position */ SELECT DISTINCT ON (topic, partition) topic, partition, next, topic_id, leader_epoch "
            "FROM {position} WHERE consumer = %(consumer)s ORDER BY topic, partition, next DESC"
        )
        self._delete = build(
            "/* position */ DELETE FROM {position} AS p USING unnest(%(topics)s::text[], %(partitions)s::integer[]) "
            "AS given (topic, partition) WHERE p.consumer = %(consumer)s AND p.topic = given.topic "
            "AND p.partition = given.partition"
        )
        columns = "SELECT asked.topic, asked.partition, found.next, found.topic_id, found.leader_epoch"
        self._load = build(f"/* position */ {columns} {_NEWEST}")
        # The order is that of the arrays: whoever locks several locks them in the same one.
        self._lock = build(
            f"/* position */ {columns}, pg_current_xact_id()::text::bigint, found.xmin::text::bigint {_NEWEST}",
            lock=" FOR UPDATE OF p",
        )
        self._create = build(
            "/* position */ INSERT INTO {position} (consumer, topic, partition, next, topic_id, leader_epoch) "
            "SELECT %(consumer)s::text, given.* FROM unnest(%(topics)s::text[], %(partitions)s::integer[], "
            "%(next)s::bigint[], %(topic_ids)s::text[], %(epochs)s::integer[]) "
            "AS given (topic, partition, next, topic_id, leader_epoch) WHERE NOT EXISTS (SELECT FROM {position} AS p "
            "WHERE p.consumer = %(consumer)s AND p.topic = given.topic AND p.partition = given.partition)"
        )
        self._write = build(
            "/* position */ WITH given AS MATERIALIZED (SELECT * FROM unnest(%(topics)s::text[], "
            "%(partitions)s::integer[], %(before)s::bigint[], %(next)s::bigint[], %(topic_ids)s::text[], "
            "%(epochs)s::integer[]) AS t (topic, partition, before, next, topic_id, leader_epoch)), "
            "gone AS (DELETE FROM {position} AS p USING given WHERE p.consumer = %(consumer)s "
            "AND p.topic = given.topic AND p.partition = given.partition AND p.next = given.before "
            "RETURNING given.*), "
            "moved AS (INSERT INTO {position} (consumer, topic, partition, next, topic_id, leader_epoch) "
            "SELECT %(consumer)s::text, topic, partition, next, topic_id, leader_epoch FROM gone "
            "ON CONFLICT DO NOTHING RETURNING 1) "
            "SELECT (SELECT count(*) FROM moved), pg_current_xact_id()::text::bigint"
        )
        # Whoever has locked a row, and nothing else of it, is its xmax.
        self._unblock = build(
            "/* unblock */ SELECT pg_terminate_backend(pid) FROM (SELECT DISTINCT a.pid "
            f"{_NEWEST} JOIN pg_locks AS l ON l.locktype = 'transactionid' AND l.transactionid = found.xmax "
            "AND l.granted JOIN pg_stat_activity AS a ON a.pid = l.pid "
            "WHERE a.application_name = %(application)s AND a.usename = session_user "
            "AND a.datname = current_database() AND a.pid <> pg_backend_pid()) AS held"
        )

    def topics(self, connection: Any) -> dict[str, set[str]]:
        """Of each consumer that has a position, the topics. Raises what the server says without the table."""
        found: dict[str, set[str]] = {}
        for consumer, topic in _rows(connection, self._topics, {}):
            found.setdefault(consumer, set()).add(topic)
        return found

    def everything(self, connection: Any, consumer: str) -> dict[Partition, Position]:
        """Of one consumer."""
        return _positions(_rows(connection, self._everything, {"consumer": consumer}))

    def load(self, connection: Any, consumer: str, partitions: Sequence[Partition]) -> dict[Partition, Position]:
        """Outside of a transaction."""
        return _positions(_rows(connection, self._load, _asked(consumer, partitions)))

    def create(self, connection: Any, consumer: str, positions: Mapping[Partition, Position]) -> None:
        """Commits rows for partitions that have none; leaves the others."""
        # A row that another owner makes meanwhile may have another `next`, so it would be a second one. The lock shows
        # it only to a later snapshot, whatever isolation level DATABASES asks for.
        with transaction.atomic(using=connection.alias, durable=True), connection.cursor() as cursor:
            cursor.execute("/* position */ SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            cursor.execute("/* position */ SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [_CREATE_LOCK, consumer])
            self._insert(cursor, consumer, positions)

    def _insert(self, cursor: Any, consumer: str, positions: Mapping[Partition, Position]) -> None:
        found = sorted(positions)
        cursor.execute(
            self._create, {**_asked(consumer, found), **_given([positions[partition] for partition in found])}
        )

    def lock(
        self, connection: Any, consumer: str, partitions: Sequence[Partition]
    ) -> tuple[dict[Partition, Position], int]:
        """The positions and the transaction's id; a partition whose row was moved meanwhile is left out."""
        rows = _rows(connection, self._lock, _asked(consumer, sorted(partitions)))
        with connection.cursor() as cursor:
            cursor.execute(_PATIENT)
        return _positions(rows), int(rows[0][5]) if rows else 0

    def write(self, connection: Any, consumer: str, moved: Mapping[Partition, tuple[int, Position]]) -> tuple[int, int]:
        """How many rows were where they were locked, and the transaction's id."""
        found = sorted(moved)
        given = {
            **_asked(consumer, found),
            **_given([moved[partition][1] for partition in found]),
            "before": _numbers(moved[partition][0] for partition in found),
        }
        ((count, transaction_id),) = _rows(connection, self._write, given)
        return int(count), int(transaction_id)

    def replace(self, connection: Any, consumer: str, positions: Mapping[Partition, Position]) -> None:
        """As an operator says, inside of a transaction."""
        with connection.cursor() as cursor:
            cursor.execute(self._delete, _asked(consumer, sorted(positions)))
            self._insert(cursor, consumer, positions)

    def settle(
        self, connection: Any, consumer: str, partitions: Sequence[Partition]
    ) -> dict[Partition, tuple[Position, int]]:
        """With the low 32 bits of the transaction that wrote each. Twice: the first question waits for a COMMIT that is
        still on its way, and then misses the new row."""
        given = _asked(consumer, sorted(partitions))
        with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
            cursor.execute("/* position */ SELECT set_config('lock_timeout', %s, true)", [self._lock_timeout])
            cursor.execute(self._lock, given)
            cursor.execute(self._lock, given)
            rows = cursor.fetchall()
        return {partition: (position, row[6]) for row in rows for partition, position in _positions([row]).items()}

    def unblock(self, connection: Any, consumer: str, partitions: Sequence[Partition]) -> int:
        """How many sessions of this consumer held the rows and were ended. Those of others are left alone."""
        given = {**_asked(consumer, partitions), "application": application_name(consumer)}
        return sum(is_ended for (is_ended,) in _rows(connection, self._unblock, given))


def _rows(connection: Any, statement: str, given: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, given)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found


# Arrays are sent as texts: the driver asks each element of a list for its type, which takes a third of the processor
# time of a small statement. No name of a topic and no id of one has a character that would have to be escaped.


def _texts(values: Iterable[str]) -> str:
    return "{" + ",".join(f'"{value}"' for value in values) + "}"


def _numbers(values: Iterable[int]) -> str:
    return "{" + ",".join(map(str, values)) + "}"


def _asked(consumer: str, partitions: Sequence[Partition]) -> dict[str, Any]:
    return {
        "consumer": consumer,
        "topics": _texts(partition.topic for partition in partitions),
        "partitions": _numbers(partition.number for partition in partitions),
    }


def _given(positions: Sequence[Position]) -> dict[str, Any]:
    return {
        "next": _numbers(position.next for position in positions),
        "topic_ids": _texts(position.topic_id for position in positions),
        "epochs": _numbers(position.leader_epoch for position in positions),
    }


def _positions(rows: Sequence[tuple[Any, ...]]) -> dict[Partition, Position]:
    return {Partition(row[0], row[1]): Position(row[2], row[3], row[4]) for row in rows}
