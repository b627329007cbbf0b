"""create_time on its way from and to PostgreSQL: whatever it is, without an error and without a date per row.

Python knows the years 1 to 9999 and no infinity. psycopg raises for all others, for the whole result.
"""

from __future__ import annotations

import struct

from psycopg import pq
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Dumper
from psycopg.types.numeric import Int8BinaryLoader

from outbox.schema.times import KNOWN_BEFORE, KNOWN_FROM

_TIMESTAMPTZ = 1184
CREATED = "coalesce(create_time, '-infinity')"
"""The column as `core.times` has it, on a connection of `register`."""
KNOWN = (
    f"CASE WHEN create_time >= '{KNOWN_FROM.isoformat()}' AND create_time < '{KNOWN_BEFORE.isoformat()}' "
    "THEN create_time ELSE '-infinity' END"
)
"""The column where a date of Python's and Spark's is in it, else '-infinity'."""


class Time:
    """A parameter: timestamptz in binary, of microseconds since 2000."""

    __slots__ = ("wire",)

    def __init__(self, time: int) -> None:
        self.wire = struct.pack(">q", time)


class _TimeDumper(Dumper):
    format = pq.Format.BINARY
    oid = _TIMESTAMPTZ

    def dump(self, obj: Time) -> Buffer | None:
        return obj.wire


def register(context: AdaptContext) -> None:
    """Let `context`, a connection, take `Time` as parameters, and return timestamptz in binary results as numbers."""
    context.adapters.register_dumper(Time, _TimeDumper)
    context.adapters.register_loader(_TIMESTAMPTZ, Int8BinaryLoader)
