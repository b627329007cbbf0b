"""Rows of the table as Arrow batches, in executors. `datasource.py` decides which rows are marked, and when.

Small records without headers come a page at a time, each column as one string of bytes beside its lengths. PostgreSQL
joins them faster than Python takes rows apart, and no record becomes a Python object here. If a page holds another kind
of record, that page and all later ones come row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql
from pyspark.sql.datasource import InputPartition

from outbox.core.times import NONE
from outbox.edges.postgres.common.table import identifier
from outbox.edges.postgres.common.texts import has_encoding, not_utf8
from outbox.edges.postgres.common.timestamps import KNOWN
from outbox.exceptions import OutboxError
from outbox.spark.source import statements
from outbox.spark.source.options import Options
from outbox.spark.source.statements import RecordsMissing

_ROWS_AT_ONCE = 5_000
_FIRST_ROWS, _BYTES_AT_ONCE = 500, 32_000_000
_TEXTS_AT_ONCE = 20
_SMALL_BYTES = 1_000
_NAMES = ["id", "create_time", "topic", "key", "value", "headers"]
_MICROSECONDS_1970_TO_2000 = 946_684_800_000_000


class RecordNotText(OutboxError):
    """A database without an encoding holds a record that is not UTF-8."""


@dataclass
class Range(InputPartition):
    """The ids that one task reads. `count`: the number of records that must be there; negative: any number."""

    lowest: int
    highest: int
    count: int = -1
    leader: str = ""


def read(options: Options, wanted: Range) -> Iterator[Any]:
    """The records as Arrow batches. Raises unless all marked records are there."""
    count = 0
    with statements.connect(options.url, options.statement_timeout) as connection:
        has_binary = statements.has_binary(connection, options.table)
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            if not has_encoding(connection):
                _require_utf8(connection, options.table, wanted)
            for batch in _batches(connection, options.table, wanted, has_binary=has_binary):
                count += batch.num_rows
                yield batch
    if wanted.count not in (-1, count):
        raise RecordsMissing(
            f"The driver marked {wanted.count} records from id {wanted.lowest} to {wanted.highest} with leader_id "
            f"{wanted.leader}, but the table has {count} of them: somebody deleted, changed or marked the others. "
            "Check whether another harvester runs on the table."
        )


def _require_utf8(connection: statements.Connection, table: str, wanted: Range) -> None:
    """Spark would send the bytes as they are, or fail without naming the record."""
    query = sql.SQL(
        "/* read */ SELECT id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values FROM {} "
        "WHERE id BETWEEN %s AND %s" + (" AND leader_id = %s" if wanted.leader else "") + " ORDER BY id"
    ).format(identifier(table))
    with connection.cursor("outbox_texts", binary=True) as rows:
        rows.execute(query, [wanted.lowest, wanted.highest, *([wanted.leader] if wanted.leader else [])])
        while few := rows.fetchmany(_TEXTS_AT_ONCE):
            for id_, *texts in few:
                if reason := not_utf8(*texts):
                    raise RecordNotText(f"Record {id_}: {reason}")


def _batches(connection: statements.Connection, table: str, wanted: Range, *, has_binary: bool) -> Iterator[Any]:
    given = {"lowest": wanted.lowest, "highest": wanted.highest, "leader": wanted.leader}
    page = _select_page(table, wanted.leader, _ROWS_AT_ONCE, _SMALL_BYTES, binary=has_binary)
    with connection.cursor(binary=True) as cursor:
        while (found := cursor.execute(page, given).fetchone()) and found[0] and not found[1]:
            batch = _arrow_page(*found[2:])
            yield batch
            given["lowest"] = batch.column(0)[-1].as_py() + 1
    if not found or not found[0]:
        return
    select = statements.select(table, wanted.leader, binary=has_binary)
    given |= {"limit": _FIRST_ROWS, "bytes": _BYTES_AT_ONCE}
    with connection.cursor(binary=True) as cursor:
        while few := cursor.execute(select, given).fetchall():
            yield _arrow(few)
            given["lowest"] = few[-1][0] + 1
            # Only a few more than fit into memory: PostgreSQL unpacks compressed headers to measure them.
            given["limit"] = min(_ROWS_AT_ONCE, 4 * len(few))


def _select_page(table: str, leader: str, rows: int, small_bytes: int, *, binary: bool = True) -> str:
    """The first rows of a range of ids as one row: their number; whether one of them is large or has headers; then the
    columns. Ids and times come as arrays; topic, key and value as lengths and bytes."""
    texts = ["kafka_key", statements.TEXT, *(["kafka_value_binary"] * binary)]
    small = f"({' + '.join(f'coalesce(octet_length({text}), 0)' for text in texts)}) <= {small_bytes}"
    value = f"coalesce(kafka_value_binary, textsend({statements.TEXT}))" if binary else f"textsend({statements.TEXT})"
    strings = ", ".join(
        f"array_send(array_agg(coalesce(octet_length({name}), -1))), string_agg({name}, ''::bytea)"
        for name in ("topic", "key", "value")
    )
    return (
        sql.SQL(
            "/* read */ SELECT count(*), bool_or(is_other), array_send(array_agg(id)), "
            f"array_send(array_agg(created)), {strings} FROM (SELECT id, {KNOWN} AS created, "
            f"textsend(kafka_topic) AS topic, CASE WHEN is_small THEN textsend(kafka_key) END AS key, "
            f"CASE WHEN is_small THEN {value} END AS value, "
            "NOT is_small OR coalesce(cardinality(kafka_header_keys), 0) > 0 AS is_other FROM "
            # The limit keeps the planner from putting `small` into each place where it is asked for.
            f"(SELECT *, {small} AS is_small FROM {{table}} WHERE id BETWEEN %(lowest)s AND %(highest)s"
            + (" AND leader_id = %(leader)s" if leader else "")
            + f" ORDER BY id LIMIT {rows}) AS seen) AS page"
        )
        .format(table=identifier(table))
        .as_string()
    )


def _arrow_page(ids: bytes, times: bytes, *columns: bytes) -> Any:
    import numpy as np
    import pyarrow as pa

    numbers = _integers(ids)
    if len(numbers) > 1 and not bool((np.diff(numbers) > 0).all()):
        raise RecordsMissing("PostgreSQL returned the records of a page in another order than that of their ids.")
    texts = [
        _strings(kind, _integers(lengths, 4), data)
        for kind, lengths, data in zip(
            (pa.string(), pa.string(), pa.binary()), columns[::2], columns[1::2], strict=True
        )
    ]
    nothing = pa.nulls(len(numbers), _headers_type())
    return pa.RecordBatch.from_arrays([pa.array(numbers), _instants(_integers(times)), *texts, nothing], _NAMES)


def _integers(array: bytes, size: int = 8) -> Any:
    """The values of an array in PostgreSQL's binary form: a head of 20 bytes, then each element after its length."""
    import numpy as np

    kind = np.dtype([("length", ">i4"), ("value", f">i{size}")])
    return np.frombuffer(array, kind, offset=20)["value"].astype("i8")


def _strings(kind: Any, lengths: Any, data: bytes | None) -> Any:
    """A column from its values, one after the other; a length of -1 is a null."""
    import numpy as np
    import pyarrow as pa

    ends = np.zeros(len(lengths) + 1, "i4")
    np.cumsum(np.maximum(lengths, 0), out=ends[1:])
    is_there = pa.py_buffer(np.packbits(lengths >= 0, bitorder="little").tobytes())
    return pa.Array.from_buffers(
        kind, len(lengths), [is_there, pa.py_buffer(ends.tobytes()), pa.py_buffer(data or b"")]
    )


def _arrow(rows: list[tuple[Any, ...]]) -> Any:
    import pyarrow as pa

    ids, times, topics, keys, values, names, texts = zip(*rows, strict=True)
    columns = [
        pa.array(ids, pa.int64()),
        _timestamps(times),
        pa.array(topics, pa.string()),
        pa.array(keys, pa.string()),
        pa.array(values, pa.binary()),
        pa.array(map(_paired, names, texts), _headers_type()) if any(names) else pa.nulls(len(rows), _headers_type()),
    ]
    return pa.RecordBatch.from_arrays(columns, _NAMES)


def _headers_type() -> Any:
    import pyarrow as pa

    return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _paired(names: list[str] | None, texts: list[str] | None) -> list[tuple[str, bytes]] | None:
    return [(name, text.encode()) for name, text in zip(names, texts or (), strict=True)] if names else None


def _timestamps(wire: Sequence[bytes]) -> Any:
    """From PostgreSQL's binary form, without a Python step per value."""
    import numpy as np

    return _instants(np.frombuffer(b"".join(wire), ">i8").astype("i8"))


def _instants(microseconds: Any) -> Any:
    """From microseconds since 2000; null where Spark has no date for the time."""
    import pyarrow as pa

    found = pa.array(microseconds + _MICROSECONDS_1970_TO_2000, mask=microseconds == NONE)
    return found.cast(pa.timestamp("us", tz="UTC"))
