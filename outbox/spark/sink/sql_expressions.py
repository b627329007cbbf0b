"""SQL expressions on a DataFrame of records: the checksum of each, as `core.exactly_once.ledger` defines it, and its
slice.

The columns: topic (string), key (string or binary), value (string or binary; null is a tombstone), headers
(array<struct<key: string, value: binary or string>>, or none), id (bigint, or none). Each function takes the names of
the columns that are there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

_32 = 0xFFFFFFFF


def checksum(columns: Collection[str]) -> Column:
    """CRC-32 of the record's bytes; the same number as `zlib.crc32(core.exactly_once.ledger.record_bytes(row))`."""
    return _column(checksum_sql(columns))


def checksum_sql(columns: Collection[str]) -> str:
    lengths, headers = "''", "''"
    if (
        "headers" in columns
    ):  # Spark interprets functions of arrays, which is slow: use them only where there are headers
        pairs = f"concat({_length('pair.key')}, {_length('pair.value')})"
        texts = "concat(pair.key, coalesce(CAST(pair.value AS STRING), ''))"
        lengths, headers = (
            f"CASE WHEN size(headers) > 0 THEN array_join(transform(headers, pair -> {text}), '') ELSE '' END"
            for text in (pairs, texts)
        )
    number = "CAST(id AS STRING)" if "id" in columns else "'0'"
    parts = [number, _length("topic"), _length("key"), lengths, "CASE WHEN value IS NULL THEN '-' ELSE ':' END"]
    head = ", ".join([*parts, _text("topic"), _text("key"), headers])
    return f"crc32(concat(CAST(concat({head}) AS BINARY), coalesce(CAST(value AS BINARY), X'')))"


NULL = "-"
HEADERS = (
    "CASE WHEN size(headers) > 0 THEN array_join(transform(headers, pair -> "
    f"concat(coalesce(hex(pair.key), '{NULL}'), '=', coalesce(hex(pair.value), '{NULL}'))), ' ') END"
)
"""The headers for an Arrow batch: one text, and null where there are none. Spark 4.0 takes 10 µs to pass on an array
that is null and 2 µs for an empty one, and it sorts and shuffles the array too."""


def slice_sql(columns: Collection[str], order: Sequence[str], slices: int, *, keep_empty_key: bool) -> str:
    """The slice of a record. Records of one topic and key share one; records without a key are spread."""
    hashed = f"xxhash64({_text('topic')}, {_text('key')})"
    if not keep_empty_key:
        spread = ", ".join(["id"] if "id" in columns else map(quoted, order))
        hashed = f"CASE WHEN {_text('key')} <> '' THEN {hashed} ELSE xxhash64({spread}) END"
    return f"CAST(pmod({hashed}, {slices}) AS INT)"


def quoted(name: str) -> str:
    """A column's name in SQL."""
    return "`" + name.replace("`", "``") + "`"


def home_of(slice_: str, slices: int, homes: Sequence[int] = ()) -> Column:
    """A number that Spark's hash partitioning puts into the partition of this slice's number; or, with `homes`, into
    the partition that `homes` gives for the slice."""
    numbers = _homes(slices)
    numbers = tuple(numbers[home] for home in homes) if homes else numbers
    return _column(f"element_at(array({', '.join(map(str, numbers))}), CAST({slice_} AS INT) + 1)")


@cache
def _homes(slices: int) -> tuple[int, ...]:
    found: dict[int, int] = {}
    for number in count():
        found.setdefault(_murmur3(number) % slices, number)
        if len(found) == slices:
            return tuple(found[slice_] for slice_ in range(slices))
    raise AssertionError("unreachable")


def _murmur3(number: int, seed: int = 42) -> int:
    """Spark's hash() of an int, which decides its partition."""
    mixed = _rotated(number * 0xCC9E2D51, 15) * 0x1B873593
    found = _rotated(seed ^ (mixed & _32), 13) * 5 + 0xE6546B64 & _32
    found ^= 4
    found = (found ^ found >> 16) * 0x85EBCA6B & _32
    found = (found ^ found >> 13) * 0xC2B2AE35 & _32
    found ^= found >> 16
    return found - (1 << 32) if found >> 31 else found


def _rotated(number: int, by: int) -> int:
    number &= _32
    return (number << by | number >> 32 - by) & _32


def _text(name: str) -> str:
    return f"coalesce(CAST({name} AS STRING), '')"


def _length(name: str) -> str:
    return f"concat(',', CAST(char_length({_text(name)}) AS STRING))"


def _column(text: str) -> Column:
    """One call into the JVM. A column that is built from calls takes one call for every part, a millisecond each."""
    from pyspark.sql import functions as F

    return F.expr(text)
