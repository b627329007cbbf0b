"""Rows of the table as Arrow batches, in executors. What is marked and when is decided in `source.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import InputPartition

from outbox.spark import stream
from outbox.spark.options import Options
from outbox.spark.stream import RecordsMissing

_ROWS_AT_ONCE = 5_000
_MICROSECONDS_1970_TO_2000 = 946_684_800_000_000


@dataclass
class Range(InputPartition):
    """Ids that one task reads. `count`: how many records must be there; negative: any number."""

    lowest: int
    highest: int
    count: int = -1
    leader: str = ""


def read(options: Options, wanted: Range) -> Iterator[Any]:
    """The records as Arrow batches; raises unless all that were marked are there."""
    count = 0
    with stream.connect(options.url, options.statement_timeout) as connection:
        statement = stream.select(options.table, wanted.leader, binary=stream.has_binary(connection, options.table))
        given = {"lowest": wanted.lowest, "highest": wanted.highest, "leader": wanted.leader}
        # In pieces: how large values are is not known.
        with connection.transaction(), connection.cursor("outbox_read", binary=True) as cursor:
            cursor.execute(statement, given)
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                count += len(rows)
                yield _arrow(rows)
    if wanted.count not in (-1, count):
        raise RecordsMissing(
            f"{wanted.count} records from id {wanted.lowest} to {wanted.highest} were marked with leader_id "
            f"{wanted.leader}, and {count} are there: somebody deleted, changed or marked the others. Did another "
            "harvester run on the table?"
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
    return pa.RecordBatch.from_arrays(columns, ["id", "create_time", "topic", "key", "value", "headers"])


def _headers_type() -> Any:
    import pyarrow as pa

    return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _paired(names: list[str] | None, texts: list[str] | None) -> list[tuple[str, bytes]] | None:
    return [(name, text.encode()) for name, text in zip(names, texts or (), strict=True)] if names else None


def _timestamps(wire: Sequence[bytes]) -> Any:
    """From PostgreSQL's binary form, microseconds since 2000, without a Python step per value."""
    import numpy as np
    import pyarrow as pa

    microseconds = np.frombuffer(b"".join(wire), ">i8").astype("i8") + _MICROSECONDS_1970_TO_2000
    return pa.array(microseconds).cast(pa.timestamp("us", tz="UTC"))
