"""Every statement with which `stash` and `stash_many` write, through Django's connection.

``outbox.messages.validation`` makes the rows before, and the caller (``outbox.api``) has the transaction.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from outbox.exceptions import OutboxError
from outbox.messages.validation import Row

# First half of the advisory lock of ordered=True ("outb" in ASCII); the second half is one of ORDER_SLOTS. Every writer
# of a key must take the same lock, in any language: see ORDER_SLOT. One lock per key instead of one per slot would
# overflow PostgreSQL's lock table at about 100,000 keys in a transaction.
ORDER_LOCK = 0x6F757462
ORDER_SLOTS = 4096
ORDER_SLOT = "(hashtextextended({topic} || chr(31) || {key}, 0) & 4095)::int"

_COLUMNS = "kafka_topic, kafka_key, kafka_value, kafka_value_binary, kafka_header_keys, kafka_header_values"


class InsertStatements:
    """The SQL of one table."""

    def __init__(self, table: str) -> None:
        self.table = table
        slot = ORDER_SLOT.format(topic="%s::text", key="%s::text")
        # Arrays travel as text that PostgreSQL parses: psycopg's own dumping of lists costs more than the insert.
        values = "%s::text, %s::text, %s::text, %s::bytea, %s::text[], %s::text[]"
        self.insert = f"-- stash\nINSERT INTO {table} ({_COLUMNS}) VALUES ({values}) RETURNING id"
        # MATERIALIZED: PostgreSQL takes the lock before it evaluates the row's defaults, and so before it draws the id.
        self.insert_ordered = (
            f"-- stash\nWITH l AS MATERIALIZED (SELECT pg_advisory_xact_lock({ORDER_LOCK}, {slot})) "
            f"INSERT INTO {table} ({_COLUMNS}) SELECT {values} FROM l RETURNING id"
        )
        # PostgreSQL evaluates the defaults of an INSERT … SELECT after its sort, so ids ascend with the ordinality.
        # RETURNING promises no order, so the caller sorts the ids.
        self.insert_many = (
            f"-- stash_many\nINSERT INTO {table} ({_COLUMNS}) "
            "SELECT topic, key, value, binary_value, names::text[], vals::text[] FROM unnest("
            "%s::text[], %s::text[], %s::text[], %s::bytea[], %s::text[], %s::text[]"
            ") WITH ORDINALITY AS r(topic, key, value, binary_value, names, vals, n) ORDER BY n RETURNING id"
        )
        # The transaction must have its xid before it draws an id, as in the default of the column. From that, the
        # harvester derives which lower ids may still appear.
        self.draw_ids = (
            "-- stash_many\nWITH x AS MATERIALIZED "
            "(SELECT pg_current_xact_id(), pg_get_serial_sequence(%s, 'id')::regclass AS seq) "
            "SELECT nextval(seq) FROM x, generate_series(1, %s)"
        )
        self.copy = f"-- stash_many\nCOPY {table} (id, {_COLUMNS}) FROM STDIN"


statements = lru_cache(maxsize=8)(InsertStatements)

# Every call takes slots in the same order, so two calls of stash_many cannot wait for each other.
_LOCK_MANY = (
    "-- stash_many\nWITH slots AS MATERIALIZED (SELECT DISTINCT "
    + ORDER_SLOT.format(topic="topic", key="key")
    + " AS slot FROM unnest(%s::text[], %s::text[]) AS k(topic, key) ORDER BY slot) "
    f"SELECT count(pg_advisory_xact_lock({ORDER_LOCK}, slot)) FROM slots"
)


def insert_one(connection: BaseDatabaseWrapper, sql: str, row: Row, before: Sequence[str] = ()) -> int:
    """Insert one row by `InsertStatements.insert` or `insert_ordered` (whose lock takes `before`); return its id."""
    topic, key, value, binary, names, values, _ = row
    with connection.cursor() as cursor:
        cursor.execute(sql, (*before, topic, key, value, binary, array_text(names), array_text(values)))
        found = cursor.fetchone()
    assert found is not None
    return int(found[0])


def insert_few(connection: BaseDatabaseWrapper, sql: InsertStatements, rows: Sequence[Row]) -> list[int]:
    """Insert rows in one statement; return their ids in the order of the rows."""
    topics, keys, texts, binaries, names, values, _ = zip(*rows, strict=True)
    columns: list[Any] = [array_text(topics), array_text(keys), array_text(texts), list(binaries)]
    columns += [array_text(map(array_text, names)), array_text(map(array_text, values))]
    with connection.cursor() as cursor:
        cursor.execute(sql.insert_many, columns)
        return sorted(found[0] for found in cursor.fetchall())


def copy_many(connection: BaseDatabaseWrapper, sql: InsertStatements, rows: Iterable[Row], count: int) -> list[int]:
    """Draw `count` ids and COPY the rows under them: faster than a statement from about a thousand rows on."""
    with connection.cursor() as cursor:
        cursor.execute(sql.draw_ids, (sql.table, count))
        ids = [found[0] for found in cursor.fetchall()]
        if ids[0] is None:
            raise OutboxError(f'The table {sql.table} has no sequence for "id". Run: manage.py migrate outbox')
        lines = map(_line, ids, rows)
        with connection.wrap_database_errors, cursor.copy(sql.copy) as copy:
            while block := "".join(islice(lines, _LINES_PER_WRITE)):
                copy.write(block.encode())
    return ids


def lock_many(connection: BaseDatabaseWrapper, rows: Iterable[Row]) -> None:
    """Take the order locks of all keys, in ascending order, before any id is drawn."""
    pairs = {(row.topic, row.key): None for row in rows}
    with connection.cursor() as cursor:
        cursor.execute(_LOCK_MANY, (array_text(t for t, _ in pairs), array_text(k for _, k in pairs)))
        cursor.fetchall()


_LINES_PER_WRITE = 500


def array_text(items: Iterable[str | None]) -> str:
    """An array of text in PostgreSQL's text form."""
    return "{" + ",".join([_quoted(item) for item in items]) + "}"


def _quoted(item: str | None) -> str:
    if item is None:
        return "NULL"
    if "\\" in item or '"' in item:
        item = item.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{item}"'


# Escapes of the four special characters of COPY's text form.
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def _line(id: int, row: Row) -> str:
    topic, key, value, binary, names, values, _ = row
    vals = '{"' + '","'.join(values) + '"}' if values else "{}"
    text = value if value is not None else ""
    everything = key + text + vals
    # Few messages need escapes. One check of all texts together costs a tenth of the escaping.
    if "\\" in everything or "\n" in everything or "\t" in everything or "\r" in everything:
        return _escaped_line(id, row)
    if vals.count('"') != 2 * len(values):
        return _escaped_line(id, row)
    return f"{id}\t{topic}\t{key}\t{_NULL if value is None else value}\t{_hex(binary)}\t{_names_copy(names)}\t{vals}\n"


_NULL = "\\N"


def _escaped_line(id: int, row: Row) -> str:
    topic, key, value, binary, names, values, _ = row
    key, vals = key.translate(_ESCAPES), array_text(values).translate(_ESCAPES)
    text = _NULL if value is None else value.translate(_ESCAPES)
    return f"{id}\t{topic}\t{key}\t{text}\t{_hex(binary)}\t{_names_copy(names)}\t{vals}\n"


def _hex(binary: bytes | None) -> str:
    return _NULL if binary is None else "\\\\x" + binary.hex()


@lru_cache(maxsize=1024)
def _names_copy(names: tuple[str, ...]) -> str:
    return array_text(names).translate(_ESCAPES)
