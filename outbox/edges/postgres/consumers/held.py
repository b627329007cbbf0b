"""The statements on `<TABLE>_held`: messages that a consumer could not handle, and later ones of their keys.

Only the owner of a partition adds, changes and deletes its rows, in transactions that have locked the position.
Operators write into the column `wanted` what they ask for, and the owner carries it out. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from django.db import DataError, IntegrityError, InternalError, ProgrammingError, transaction
from psycopg import sql

from outbox.api import stash
from outbox.core.consumers import holding
from outbox.core.consumers.holding import HISTORY_MAX, TEXT_MAX, Fate, Kept, Release, StoredMessage, Tries
from outbox.core.consumers.values import ConsumerOptions, Fetched, Partition
from outbox.core.steps import step
from outbox.edges.postgres.common.table import identifier
from outbox.exceptions import InvalidMessage

WANTED_MAX = 1_000

ERROR_HEADERS = "error-consumer", "error-topic", "error-partition", "error-offset", "error-step", "error-reason"
"""Of messages in a topic for errors."""

# A dead letter that is handled once more, because an operator has set the position back, and fails again.
_AGAIN = (
    'ON CONFLICT (consumer, topic, topic_id, partition, "offset") DO UPDATE SET reason = EXCLUDED.reason, '
    "attempts = EXCLUDED.attempts, delays = EXCLUDED.delays, last_error = EXCLUDED.last_error, "
    "next_try = EXCLUDED.next_try, died_at = EXCLUDED.died_at, since = clock_timestamp(), wanted = '' "
    "WHERE h.died_at IS NOT NULL"
)
_PARTITION = "h.consumer = %(consumer)s AND h.topic = %(topic)s AND h.partition = %(partition)s"
_BYTES = "coalesce(octet_length(h.value), 0) + coalesce(octet_length(h.key), 0) + pg_column_size(h.header_values)"
_FIRST = (
    "(SELECT f.id FROM {held} AS f WHERE f.consumer = %(consumer)s AND f.topic = %(topic)s "
    "AND f.partition = %(partition)s AND md5(f.key) = md5({key}) AND f.key = {key} AND f.died_at IS NULL "
    "ORDER BY f.id LIMIT 1)"
)
_ERROR = (
    "history = (CASE WHEN jsonb_array_length(h.history) >= {history} THEN h.history - 0 ELSE h.history END) || "
    "jsonb_build_object('at', to_jsonb(clock_timestamp()), 'error', g.error)"
)


class HeldMessages:
    """Of the consumers that share one outbox table."""

    def __init__(self, table: str) -> None:
        held = identifier(f"{table}_held")

        def build(text: str) -> str:
            first = sql.SQL(_FIRST.replace("{key}", "h.key")).format(held=held)
            first_of_row = sql.SQL(
                _FIRST.replace("{key}", "h.key").replace("%(topic)s", "h.topic").replace("%(partition)s", "h.partition")
            ).format(held=held)
            first_of_given = sql.SQL(_FIRST.replace("{key}", "g.key")).format(held=held)
            error = sql.SQL(_ERROR).format(history=sql.Literal(HISTORY_MAX))
            firsts = {"first": first, "first_of_row": first_of_row, "first_of_given": first_of_given}
            return sql.SQL(text).format(held=held, **firsts, error=error).as_string()

        of_asked = "h.consumer = %(consumer)s AND h.topic = a.topic AND h.partition = a.partition"
        self._look = build(
            "/* held */ SELECT a.topic, a.partition, a.is_wanted OR EXISTS (SELECT FROM {held} AS h "
            f"WHERE {of_asked} AND h.died_at IS NULL AND h.next_try <= clock_timestamp() "
            "AND (h.key IS NULL OR h.id = {first_of_row})) FROM (SELECT a.*, "
            f"EXISTS (SELECT FROM {{held}} AS h WHERE {of_asked} AND h.wanted <> '') AS is_wanted "
            "FROM unnest(%(topics)s::text[], %(partitions)s::integer[]) AS a (topic, partition)) AS a "
            f"WHERE a.is_wanted OR EXISTS (SELECT FROM {{held}} AS h WHERE {of_asked} AND h.died_at IS NULL)"
        )
        self._keys = build(
            "/* held */ SELECT a.topic, a.partition, a.key FROM unnest(%(topics)s::text[], %(partitions)s::integer[], "
            f"%(keys)s::bytea[]) AS a (topic, partition, key) WHERE EXISTS (SELECT FROM {{held}} AS h WHERE {of_asked} "
            "AND md5(h.key) = md5(a.key) AND h.key = a.key AND h.died_at IS NULL)"
        )
        self._of_offsets = build(
            '/* held */ SELECT h.partition, h."offset" FROM {held} AS h JOIN unnest(%(partitions)s::integer[], '
            "%(offsets)s::bigint[]) AS a (partition, at) ON h.consumer = %(consumer)s AND h.topic = %(topic)s "
            'AND h.topic_id = %(topic_id)s AND h.partition = a.partition AND h."offset" = a.at'
        )
        self._insert = build(
            '/* held */ INSERT INTO {held} AS h (consumer, topic, topic_id, partition, "offset", leader_epoch, key, '
            "value, header_names, header_values, produced_ms, reason, attempts, delays, last_error, next_try, "
            "died_at) VALUES "
        )
        self._wanted = build(
            f"/* held */ SELECT h.id, h.wanted, h.key FROM {{held}} AS h WHERE {_PARTITION} AND h.wanted <> '' "
            "ORDER BY h.id LIMIT %(limit)s FOR UPDATE"
        )
        self._retry = build(
            "/* held */ UPDATE {held} SET wanted = '', died_at = NULL, next_try = clock_timestamp() "
            "WHERE id = ANY (%(ids)s::bigint[])"
        )
        self._skip = build(
            "/* held */ UPDATE {held} SET wanted = '', died_at = coalesce(died_at, clock_timestamp()), "
            "next_try = NULL WHERE id = ANY (%(ids)s::bigint[])"
        )
        self._delete = build("/* held */ DELETE FROM {held} WHERE id = ANY (%(ids)s::bigint[])")
        self._next = build(
            "/* held */ UPDATE {held} SET next_try = clock_timestamp() WHERE next_try IS NULL AND reason = 'waiting' "
            "AND id IN (SELECT {first_of_given} FROM unnest(%(keys)s::bytea[]) AS g (key))"
        )
        self._heads = build(
            f"/* held */ SELECT h.id, h.key, {_BYTES} FROM {{held}} AS h WHERE {_PARTITION} AND h.died_at IS NULL "
            "AND h.next_try <= clock_timestamp() AND (h.key IS NULL OR h.id = {first}) "
            "ORDER BY h.next_try LIMIT %(limit)s"
        )
        columns = (
            'h.id, h.topic, h.partition, h."offset", h.leader_epoch, h.key, h.value, h.header_names, '
            "h.header_values, h.produced_ms, h.attempts, h.delays, CASE WHEN h.reason = 'waiting' THEN 0 "
            "ELSE extract(epoch FROM clock_timestamp() - h.since)::float8 END"
        )
        self._by_id = build(
            f"/* held */ SELECT {columns} FROM {{held}} AS h WHERE h.id = ANY (%(ids)s::bigint[]) FOR UPDATE"
        )
        self._of_keys = build(
            "/* held */ SELECT r.* FROM unnest(%(keys)s::bytea[]) WITH ORDINALITY AS g (key, at), "
            f"LATERAL (SELECT h.id, {_BYTES} FROM {{held}} AS h WHERE {_PARTITION} AND md5(h.key) = md5(g.key) "
            "AND h.key = g.key AND h.died_at IS NULL ORDER BY h.id LIMIT %(each)s) AS r ORDER BY g.at, r.id"
        )
        self._failed = build(
            "/* held */ UPDATE {held} AS h SET reason = g.reason, attempts = g.attempts, delays = g.delays, "
            "last_error = g.error, next_try = clock_timestamp() + make_interval(secs => g.pause_s), "
            "died_at = CASE WHEN g.is_dead THEN clock_timestamp() END, "
            "since = CASE WHEN h.reason = 'waiting' THEN clock_timestamp() ELSE h.since END, {error} "
            "FROM unnest(%(ids)s::bigint[], %(reasons)s::text[], %(attempts)s::integer[], %(delays)s::integer[], "
            "%(errors)s::text[], %(pauses)s::float8[], %(dead)s::boolean[]) "
            "AS g (id, reason, attempts, delays, error, pause_s, is_dead) WHERE h.id = g.id"
        )
        self._give_back = build(
            "/* held */ UPDATE {held} SET attempts = greatest(attempts - 1, 0), died_at = NULL, "
            "next_try = clock_timestamp() + interval '1 second' WHERE id = ANY (%(ids)s::bigint[]) "
            "AND reason = 'failed'"
        )

    # ---- outside of a transaction

    def look(self, connection: Any, consumer: str, partitions: Sequence[Partition]) -> dict[Partition, bool]:
        """Of partitions with held messages or requests: whether there is something to do."""
        given = {
            "consumer": consumer,
            "topics": [partition.topic for partition in partitions],
            "partitions": [partition.number for partition in partitions],
        }
        return {Partition(topic, number): is_due for topic, number, is_due in _rows(connection, self._look, given)}

    def of_offsets(
        self, connection: Any, consumer: str, topic: str, topic_id: str, messages: Sequence[Fetched]
    ) -> list[Fetched]:
        """Those of these messages of the topic that have a row, dead letters too."""
        given = {
            "consumer": consumer,
            "topic": topic,
            "topic_id": topic_id,
            "partitions": [message.partition for message in messages],
            "offsets": [message.offset for message in messages],
        }
        found = set(_rows(connection, self._of_offsets, given)) if messages else set()
        return [message for message in messages if (message.partition, message.offset) in found]

    # ---- in a transaction that has locked the position

    def keys(
        self, connection: Any, consumer: str, asked: Mapping[Partition, Sequence[bytes]]
    ) -> dict[Partition, frozenset[bytes]]:
        """Those of which a message is held."""
        pairs = [(partition, key) for partition, keys in asked.items() for key in keys]
        given = {
            "consumer": consumer,
            "topics": [partition.topic for partition, _ in pairs],
            "partitions": [partition.number for partition, _ in pairs],
            "keys": [key for _, key in pairs],
        }
        found: dict[Partition, set[bytes]] = {}
        for topic, number, key in _rows(connection, self._keys, given):
            found.setdefault(Partition(topic, number), set()).add(bytes(key))
        return {partition: frozenset(keys) for partition, keys in found.items()}

    def keep(self, connection: Any, options: ConsumerOptions, kept: Sequence[Kept]) -> list[int]:
        """Writes rows, in this order. The ids of the new ones."""
        ids: list[int] = []
        for rows in holding.in_parts(self._unpublished(connection, options, kept), _bytes):
            values = ", ".join([_ROW] * len(rows))
            given = [value for one in rows for value in _values(options, one)]
            statement = f"{self._insert}{values} {_AGAIN} RETURNING h.id"
            ids += [id_ for (id_,) in _rows(connection, statement, given)]
        return ids

    def take(self, connection: Any, consumer: str, partition: Partition, limit: int) -> list[StoredMessage]:
        """Carries out what operators want. Then locks messages that are to be tried, and those behind them: at most
        `holding.BYTES_MAX`, but one if it is larger."""
        given: dict[str, Any] = {"consumer": consumer, "topic": partition.topic, "partition": partition.number}
        self._carry_out(connection, given)
        heads = _rows(connection, self._heads, {**given, "limit": limit})
        sizes = [(id_, size) for id_, key, size in heads if key is None]
        if keys := [key for _, key, _ in heads if key is not None]:
            sizes += _rows(connection, self._of_keys, {**given, "keys": keys, "each": max(1, limit // len(heads))})
        ids = [id_ for id_, _ in next(holding.in_parts(sizes, itemgetter(1)), [])]
        rows = {row[0]: _held(row) for row in _rows(connection, self._by_id, {"ids": ids})} if ids else {}
        return [rows[id_] for id_ in ids]

    def change(self, connection: Any, options: ConsumerOptions, partition: Partition, release: Release) -> None:
        """After they were tried."""
        changes, messages = release.changes, {row.id: row.message for row in release.rows}
        gone, failed = list(changes.gone), dict(changes.failed)
        for id_, fate in changes.failed.items():
            if holding.is_published(options, fate):
                if refusal := _publish(connection, options, messages[id_], fate):
                    failed[id_] = refusal
                else:
                    gone.append(id_)
                    del failed[id_]
        if gone:
            _run(connection, self._delete, {"ids": gone})
        if failed:
            _run(connection, self._failed, {"ids": list(failed), **_columns(options, list(failed.values()))})
        if changes.heads:
            given = {"consumer": options.name, "topic": partition.topic, "partition": partition.number}
            _run(connection, self._next, {**given, "keys": list(changes.heads)})

    def give_back(self, connection: Any, ids: Sequence[int]) -> None:
        """The last attempt of these does not count."""
        _run(connection, self._give_back, {"ids": list(ids)})

    # ---- parts of them

    def _carry_out(self, connection: Any, given: Mapping[str, Any]) -> None:
        wanted = _rows(connection, self._wanted, {**given, "limit": WANTED_MAX})
        for want, statement in (
            (holding.RETRY, self._retry),
            (holding.SKIP, self._skip),
            (holding.DISCARD, self._delete),
        ):
            if ids := [id_ for id_, found, _ in wanted if found == want]:
                _run(connection, statement, {"ids": ids})
        if keys := list({bytes(key): None for _, want, key in wanted if key is not None and want != holding.RETRY}):
            _run(connection, self._next, {**given, "keys": keys})

    def _unpublished(self, connection: Any, options: ConsumerOptions, kept: Iterable[Kept]) -> Iterator[Kept]:
        """Stashes those for the topic of errors, and leaves the others."""
        for one in kept:
            if one.fate is None or not holding.is_published(options, one.fate):
                yield one
            elif refusal := _publish(connection, options, one.message, one.fate):
                yield one._replace(fate=refusal)


_ROW = (
    "(%s, %s, %s, %s, %s, %s, %s, %s, %s::text[], %s::bytea[], %s, %s, %s, %s, %s, "
    "clock_timestamp() + make_interval(secs => %s), CASE WHEN %s THEN clock_timestamp() END)"
)


def _values(options: ConsumerOptions, kept: Kept) -> list[Any]:
    message, fate = kept.message, kept.fate
    names, headers = [_text(name) for name, _ in message.headers], [value for _, value in message.headers]
    of_message = [
        options.name,
        message.topic,
        kept.topic_id,
        message.partition,
        message.offset,
        message.leader_epoch,
        message.key,
        message.value,
        names,
        headers,
        message.timestamp_ms,
    ]
    if fate is None:
        return [*of_message, holding.WAITING, 0, 0, "", None, False]
    is_dead = holding.is_dead(options, fate)
    return [*of_message, fate.reason, fate.attempts, fate.delays, _text(fate.error), fate.pause_s, is_dead]


def _bytes(kept: Kept) -> int:
    """About."""
    message = kept.message
    return sum(len(found) for found in (message.key, message.value, *(value for _, value in message.headers)) if found)


def _columns(options: ConsumerOptions, fates: Sequence[Fate]) -> dict[str, Any]:
    return {
        "reasons": [fate.reason for fate in fates],
        "attempts": [fate.attempts for fate in fates],
        "delays": [fate.delays for fate in fates],
        "errors": [_text(fate.error) for fate in fates],
        "pauses": [fate.pause_s for fate in fates],
        "dead": [holding.is_dead(options, fate) for fate in fates],
    }


def _publish(connection: Any, options: ConsumerOptions, message: Fetched, fate: Fate) -> Fate | None:
    """Stashes it for the topic of errors. None: that is done; else why it becomes a dead letter."""
    at = step(options.name, message.topic, message.partition, message.offset)
    found = options.name, message.topic, str(message.partition), str(message.offset), at, _text(fate.error)
    try:
        headers = [(name, "" if value is None else value.decode()) for name, value in message.headers]
        key = "" if message.key is None else message.key.decode()
        with transaction.atomic(using=connection.alias):
            stash(
                options.error_topic,
                _value(message.value),
                key=key,
                headers=[*headers, *zip(ERROR_HEADERS, found, strict=True)],
                using=connection.alias,
            )
    except (InvalidMessage, UnicodeDecodeError, DataError, IntegrityError, ProgrammingError, InternalError) as error:
        return Fate(
            fate.reason,
            fate.attempts,
            fate.delays,
            f"{fate.error}. The topic {options.error_topic!r} could not take it: {error}",
            None,
        )
    return None


def _value(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value


def _held(row: Sequence[Any]) -> StoredMessage:
    id_, topic, partition, offset, epoch, key, value, names, values, produced_ms, attempts, delays, age_s = row
    headers = tuple((name, None if found is None else bytes(found)) for name, found in zip(names, values, strict=True))
    message = Fetched(
        topic,
        partition,
        offset,
        epoch,
        None if key is None else bytes(key),
        None if value is None else bytes(value),
        headers,
        produced_ms,
    )
    return StoredMessage(id_, message, Tries(attempts, delays, float(age_s)))


def _text(text: str) -> str:
    """As PostgreSQL takes it."""
    return text[:TEXT_MAX].replace("\x00", "\ufffd").encode(errors="replace").decode()


def _rows(connection: Any, statement: str, given: Any) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement, given)
        found: list[Any] = cursor.fetchall()
        return found


def _run(connection: Any, statement: str, given: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, given)
