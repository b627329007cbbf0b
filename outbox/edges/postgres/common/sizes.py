"""How large a record is, as the server knows it before anything of it is read: terms of statements, in bytes.

What leaves PostgreSQL counts, not what its compression has made of it. `octet_length` of a text needs no look at the
text. For an array there is only `pg_column_size`, which tells the bytes on disk: where those are compressed, the array
is unpacked to be measured.
"""

from __future__ import annotations

EMPTY_ARRAY = 16
"""Bytes of an array without elements, at most. One with an element takes more, also when it is compressed."""
NAMES, VALUES = "kafka_header_keys", "kafka_header_values"
ARE_UNPACKED = " AND ".join(f"pg_column_compression({name}) IS NULL" for name in (NAMES, VALUES))
ON_DISK = " + ".join(f"coalesce(pg_column_size({name}), 0)" for name in (NAMES, VALUES))
"""Of the headers."""


def of_texts(*, binary: bool = True) -> str:
    """Key and value. Every size has a default: a NULL would make a sum NULL."""
    columns = ("kafka_key", "kafka_value", *(("kafka_value_binary",) if binary else ()))
    return " + ".join(f"coalesce(octet_length({name}), 0)" for name in columns)


def of_record(*, binary: bool = True) -> str:
    """Key, value and headers."""
    unpacked = " + ".join(f"coalesce(pg_column_size(array_cat({name}, NULL)), 0)" for name in (NAMES, VALUES))
    return f"{of_texts(binary=binary)} + CASE WHEN {ARE_UNPACKED} THEN {ON_DISK} ELSE {unpacked} END"
