"""The columns that the sink needs and their types. The sink checks them before it sends a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from outbox.exceptions import OutboxError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HEADERS = ("string", "binary")
TYPES = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": tuple(f"array<struct<key:string,value:{kind}>>" for kind in _HEADERS),
    "id": ("bigint", "int", "smallint", "tinyint"),
}


class WrongColumns(OutboxError):
    """The DataFrame does not hold records."""


def check(frame: DataFrame, sink: str, order: Sequence[str]) -> None:
    needed = ["topic", "key", "value", *order]
    missing = [name for name in dict.fromkeys(needed) if name not in frame.columns]
    if missing:
        raise WrongColumns(
            f"The Spark sink {sink!r} needs the columns {', '.join(missing)}, but the DataFrame has "
            f"{', '.join(frame.columns)}. Add the missing columns, or set order=(...) to the columns that order the "
            "records of one key."
        )
    # A column of nulls alone, as a literal gives it, has the type void.
    wrong = [
        f"{name} is {kind} and must be {' or '.join(TYPES[name])}"
        for name, kind in frame.dtypes
        if name in TYPES and kind not in (*TYPES[name], *(("void",) if name in ("key", "value", "headers") else ()))
    ]
    if wrong:
        has = ", ".join(f"{name} {kind}" for name, kind in frame.dtypes)
        raise WrongColumns(
            f"The Spark sink {sink!r} cannot send these records: {'; '.join(wrong)}. The DataFrame has {has}. "
            "Cast these columns."
        )
