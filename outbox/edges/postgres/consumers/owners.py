"""The statements on `<TABLE>_owner`: which process has a partition of a consumer, and whether it left it cleanly.

Nothing of it is written for a batch, unless the owner before has died. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from psycopg import sql

from outbox.core.consumers.crashes import PartitionOwner, Suspicion
from outbox.core.consumers.values import Partition
from outbox.edges.postgres.common.table import identifier

SHOW_LIFE = "/* owner */ SELECT pg_try_advisory_lock_shared(hashtextextended(%s, 0))"
"""A lock for as long as a session lasts. Nobody waits for it, and every role may see it."""
_IS_ALIVE = (
    "EXISTS (SELECT FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.objsubid = 1 "
    "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended(o.owner, 0))"
)
_GIVEN = "unnest(%(topics)s::text[], %(partitions)s::integer[])"
_ONE = "WHERE o.consumer = %(consumer)s AND o.topic = %(topic)s AND o.partition = %(partition)s AND o.owner = %(owner)s"


class Owners:
    """Of the consumers that share one outbox table, for one process."""

    def __init__(self, table: str, *, owner: str, session_timeout_s: float) -> None:
        """`owner` is a name that no other process has, ever. `own` waits for a lock as long as a session lasts, then
        55P03 is raised."""
        self.owner = owner
        self._lock_timeout = str(int(session_timeout_s * 1000))

        def build(text: str) -> str:
            return sql.SQL(text).format(owner=identifier(f"{table}_owner")).as_string()

        self._load = build(
            "/* owner */ SELECT o.topic, o.partition, o.owner, o.is_clean, o.next, o.begun, o.suspect, o.deaths, "
            f"{_IS_ALIVE} FROM {_GIVEN} AS a (topic, partition) JOIN {{owner}} AS o "
            "ON o.consumer = %(consumer)s AND o.topic = a.topic AND o.partition = a.partition"
        )
        self._own = build(
            "/* owner */ INSERT INTO {owner} AS o (consumer, topic, partition, owner, is_clean, next, suspect, deaths) "
            "SELECT %(consumer)s::text, a.topic, a.partition, %(owner)s::text, false, a.next, a.suspect, a.deaths "
            "FROM unnest(%(topics)s::text[], %(partitions)s::integer[], %(next)s::bigint[], %(suspects)s::bigint[], "
            "%(deaths)s::integer[]) AS a (topic, partition, next, suspect, deaths) ORDER BY a.topic, a.partition "
            "ON CONFLICT (consumer, topic, partition) DO UPDATE SET owner = EXCLUDED.owner, is_clean = false, "
            "next = EXCLUDED.next, begun = NULL, suspect = EXCLUDED.suspect, deaths = EXCLUDED.deaths"
        )
        self._begin = build(f"/* owner */ UPDATE {{owner}} AS o SET begun = %(offset)s {_ONE}")
        self._passed = build(f"/* owner */ UPDATE {{owner}} AS o SET begun = NULL {_ONE}")
        self._cleared = build(f"/* owner */ UPDATE {{owner}} AS o SET begun = NULL, suspect = NULL, deaths = 0 {_ONE}")
        self._leave = build(
            "/* owner */ UPDATE {owner} AS o SET is_clean = true, begun = NULL "
            f"FROM {_GIVEN} AS a (topic, partition) "
            "WHERE o.consumer = %(consumer)s AND o.topic = a.topic AND o.partition = a.partition "
            "AND o.owner = %(owner)s"
        )

    def load(self, connection: Any, consumer: str, partitions: Sequence[Partition]) -> dict[Partition, PartitionOwner]:
        """Outside of a transaction."""
        with connection.cursor() as cursor:
            cursor.execute(self._load, _asked(consumer, partitions))
            return {Partition(*row[:2]): PartitionOwner(*row[2:]) for row in cursor.fetchall()}

    def own(self, connection: Any, consumer: str, owned: Mapping[Partition, tuple[int, Suspicion]]) -> None:
        """From now on they count as left uncleanly, until `leave`. An owner that stands still in the transaction that
        has handled a message keeps its row locked."""
        partitions = sorted(owned)
        given = {
            **_asked(consumer, partitions),
            "owner": self.owner,
            "next": [owned[partition][0] for partition in partitions],
            "suspects": [owned[partition][1].suspect for partition in partitions],
            "deaths": [owned[partition][1].deaths for partition in partitions],
        }
        with transaction.atomic(using=connection.alias, durable=True), connection.cursor() as cursor:
            cursor.execute("/* owner */ SELECT set_config('lock_timeout', %s, true)", [self._lock_timeout])
            cursor.execute(self._own, given)

    def begin(self, connection: Any, consumer: str, partition: Partition, offset: int) -> None:
        """Outside of a transaction: the message is about to be handled by itself."""
        self._run(connection, self._begin, {**self._one(consumer, partition), "offset": offset})

    def given_up(self, connection: Any, consumer: str, partition: Partition) -> None:
        """Outside of a transaction: the message is not being handled any more."""
        self._run(connection, self._passed, self._one(consumer, partition))

    def passed(self, connection: Any, consumer: str, partition: Partition, *, is_last: bool) -> None:
        """In the transaction that has handled it."""
        self._run(connection, self._cleared if is_last else self._passed, self._one(consumer, partition))

    def leave(self, connection: Any, consumer: str, partitions: Sequence[Partition]) -> None:
        """Those that this process still owns."""
        self._run(connection, self._leave, {**_asked(consumer, partitions), "owner": self.owner})

    def _one(self, consumer: str, partition: Partition) -> dict[str, Any]:
        return {
            "consumer": consumer,
            "topic": partition.topic,
            "partition": partition.number,
            "owner": self.owner,
        }

    def _run(self, connection: Any, statement: str, given: Mapping[str, Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement, given)


def _asked(consumer: str, partitions: Sequence[Partition]) -> dict[str, Any]:
    return {
        "consumer": consumer,
        "topics": [partition.topic for partition in partitions],
        "partitions": [partition.number for partition in partitions],
    }
