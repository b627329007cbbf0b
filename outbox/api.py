"""Stashing: `stash` and `stash_many` put messages into the outbox table, in the caller's transaction.

This module has the two calls, their connection and their transaction. ``outbox.messages.validation`` checks a message,
and ``outbox.messages.inserts`` has the SQL. The calls import models at first use, because Django imports ``outbox``
before apps are ready.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from django.db import connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

from outbox.conf import Conf, current
from outbox.exceptions import InvalidMessage, OutboxError, StashOutsideTransaction
from outbox.messages.context import correlation, stash_alias, stash_is_off
from outbox.messages.inserts import InsertStatements, copy_many, insert_few, insert_one, lock_many, statements
from outbox.messages.message import Headers, Message, as_pairs, shown
from outbox.messages.validation import Row, Validator

__all__ = ["Headers", "Message", "correlation", "stash", "stash_many"]

# From about a hundred rows on, drawing ids and COPY are faster than one INSERT, in spite of more round trips. Measured
# on a local server: 100 rows take 1.2 and 1.2 ms, 1,000 rows take 6.4 and 10 ms. On a distant server the limit is
# higher.
INSERT_ROWS_MAX = 250
# stash_many keeps this much in memory at a time.
CHUNK_ROWS = 10_000
CHUNK_BYTES = 16_000_000


def stash(
    topic: str,
    value: Any = None,
    *,
    key: str = "",
    headers: Headers | None = None,
    using: str | None = None,
    ordered: bool = False,
    message_id: str | None = None,
    correlation_id: str | None = None,
) -> int:
    """Put one message into the outbox, in the transaction of the caller; return the id of its record.

    The harvester sends `value` unchanged when it is str or bytes. None is a tombstone. The serializer of the settings
    (JSON) converts any other value. The empty `key` means no key: a null key in Kafka, and no order. `headers` are a
    mapping or pairs of strings. Names may repeat, and their order is kept. The message id (random unless given) and the
    correlation id (given, or set by `outbox.correlation`) come last.

    With `ordered`, the ids of this topic and key follow the order of the commits. For that, an advisory lock is held
    until the transaction ends. It works only if every writer of the key sets `ordered`. A transaction that stashes
    several keys in this way must lock them in the same order everywhere (or use `stash_many`). As with row locks, two
    transactions may otherwise deadlock.

    Raises `InvalidMessage` if the table or Kafka would reject the message, and `StashOutsideTransaction` in autocommit
    mode. Tests of Django's TestCase run in a transaction, so they do not raise it: use TransactionTestCase instead.

    In a replay of a consumer the call does nothing and returns 0, unless the operator has given `--stash`.
    """
    if stash_is_off.get():
        return 0
    conf = current()
    connection = _connection(using, conf, "stash()")
    pairs = () if headers is None else as_pairs(headers)
    row = Validator(conf).row(topic, value, key, pairs, message_id, correlation_id)
    sql = _statements(connection)
    if not ordered:
        return insert_one(connection, sql.insert, row)
    _require_key(row)
    return insert_one(connection, sql.insert_ordered, row, before=(row.topic, row.key))


def stash_many(messages: Iterable[Message], *, using: str | None = None, ordered: bool = False) -> list[int]:
    """Put many messages into the outbox; return the ids of their records in the order of the messages.

    All or nothing: when a message is invalid, or the iterable raises, the call stashes no message, and the caller's
    transaction remains usable. The call consumes an iterator in chunks of at most 10,000 messages or 16 MB. The
    iterator may use the connection itself. With `ordered`, the call consumes the whole iterator first. It then takes
    all locks before it draws the first id, in an order in which two calls cannot deadlock.

    The other arguments mean the same as those of `stash`. In a replay the ids are 0.
    """
    if stash_is_off.get():
        return [0 for _ in messages]
    conf = current()
    connection = _connection(using, conf, "stash_many()")
    sql = _statements(connection)
    validator = Validator(conf, expected=256)
    chunks = _chunks(iter(messages), validator)
    if ordered:
        return _stash_ordered(connection, sql, [row for chunk in chunks for row in _rows(chunk, validator)])
    chunk, following = next(chunks, None), next(chunks, None)
    if chunk and not following and len(chunk.messages) <= INSERT_ROWS_MAX:
        return insert_few(connection, sql, list(_rows(chunk, validator)))
    if not chunk:
        return []
    ids: list[int] = []
    with transaction.atomic(using=connection.alias):  # also as a savepoint: either all chunks are stashed or none
        while chunk:
            # Validation runs while PostgreSQL reads earlier rows, so it must not use the connection.
            ids += copy_many(connection, sql, _rows(chunk, validator), len(chunk.messages))
            chunk = following  # two assignments, so that at most two chunks are in memory
            following = next(chunks, None)
    return ids


def _stash_ordered(connection: BaseDatabaseWrapper, sql: InsertStatements, rows: list[Row]) -> list[int]:
    for at, row in enumerate(rows):
        _require_key(row, f"messages[{at}]: ")
    if not rows:
        return []
    with transaction.atomic(using=connection.alias):  # also in autocommit mode, the locks must last until the commit
        lock_many(connection, rows)
        if len(rows) <= INSERT_ROWS_MAX and sum(row.size for row in rows) <= CHUNK_BYTES:
            return insert_few(connection, sql, rows)
        return copy_many(connection, sql, rows, len(rows))


class _Chunk(NamedTuple):
    """Messages from the caller's iterable with serialised values; `start` is the position of the first one.

    When a chunk is complete, the caller's code (the iterable, the serializer) has run for it.
    """

    start: int
    messages: list[Message]
    values: list[str | bytes | None]


def _chunks(messages: Iterator[Any], validator: Validator) -> Iterator[_Chunk]:
    start = 0
    while chunk := _take_chunk(messages, start, validator):
        yield chunk
        start += len(chunk.messages)


def _take_chunk(messages: Iterator[Any], start: int, validator: Validator) -> _Chunk | None:
    chunk = _Chunk(start, [], [])
    size = 0
    for message in islice(messages, CHUNK_ROWS):
        at = start + len(chunk.messages)
        if not isinstance(message, Message):
            kind = type(message).__name__
            raise InvalidMessage(f"messages[{at}]: {shown(message)} is {kind}. Pass outbox.Message to stash_many().")
        value = message.value
        if type(value) is not str and value is not None:
            try:
                value = validator.serialized(value)
            except InvalidMessage as error:
                raise _at(at, error) from error.__cause__
        chunk.messages.append(message)
        chunk.values.append(value)
        size += len(value or "")
        if size >= CHUNK_BYTES:
            break
    return chunk if chunk.messages else None


def _rows(chunk: _Chunk, validator: Validator) -> Iterator[Row]:
    """Yield the validated rows. An error names the message by its position."""
    validated = validator.row
    for at, (message, value) in enumerate(zip(chunk.messages, chunk.values, strict=True), chunk.start):
        pairs: Any = message.headers or ()  # Message has made a tuple of them
        try:
            row = validated(message.topic, value, message.key, pairs, message.message_id, message.correlation_id)
        except InvalidMessage as error:
            raise _at(at, error) from error.__cause__
        yield row


def _at(position: int, error: InvalidMessage) -> InvalidMessage:
    return InvalidMessage(f"messages[{position}]: {error}")


def _require_key(row: Row, where: str = "") -> None:
    if not row.key:
        raise InvalidMessage(
            f'{where}key: "" is empty, and ordered=True keeps the order of a key. Pass a key, or leave '
            "ordered=True out."
        )


def _connection(using: str | None, conf: Conf, call: str) -> BaseDatabaseWrapper:
    """The connection of the alias, once it is sure that the record may be written there now."""
    connection = connections[using or stash_alias.get() or router.db_for_write(_model())]
    if connection.vendor != "postgresql":
        raise OutboxError(
            f"{call} needs PostgreSQL, but the database alias {connection.alias!r} is {connection.vendor}. Pass using= "
            "or route outbox.OutboxRecord to the PostgreSQL database that holds the rows of the same transaction."
        )
    # Autocommit is off inside atomic(), and after set_autocommit(False), where the caller commits by hand.
    if not conf.stash.autocommit_stash and connection.get_autocommit():
        raise StashOutsideTransaction(
            f"{call} was called outside a transaction: the record could outlive a rolled-back change. Wrap both in "
            "transaction.atomic(). To stash a record without a change, set "
            'OUTBOX["AUTOCOMMIT_STASH"] = True.'
            + ("" if connection.alias == "default" else f" (Database alias: {connection.alias!r}.)")
        )
    return connection


@lru_cache(maxsize=1)
def _model() -> type[Model]:
    from outbox.models import OutboxRecord

    return OutboxRecord


def _statements(connection: BaseDatabaseWrapper) -> InsertStatements:
    return statements(connection.ops.quote_name(_model()._meta.db_table))
