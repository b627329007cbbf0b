"""Arrays of ids as PostgreSQL reads them in binary: built by slices, without a Python step per id."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence

from psycopg import pq
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Dumper

_INT8, _INT8_ARRAY = 20, 1016
_HEAD = struct.Struct(">iIIii")
_ITEM = 12  # four bytes of length, eight of number


def encode(ids: Sequence[int]) -> bytes:
    """The wire form of a bigint[] without nulls."""
    count = len(ids)
    if not count:
        return struct.pack(">iII", 0, 0, _INT8)
    numbers = array("q", ids)
    if sys.byteorder == "little":
        numbers.byteswap()
    big = numbers.tobytes()
    items = bytearray(_ITEM * count)
    items[3::_ITEM] = b"\x08" * count
    for place in range(8):
        items[4 + place :: _ITEM] = big[place::8]
    return _HEAD.pack(1, 0, _INT8, count, 1) + items


class Ids:
    """A parameter: bigint[] in binary."""

    __slots__ = ("wire",)

    def __init__(self, ids: Sequence[int]) -> None:
        self.wire = encode(ids)


class _IdsDumper(Dumper):
    format = pq.Format.BINARY
    oid = _INT8_ARRAY

    def dump(self, obj: Ids) -> Buffer | None:
        return obj.wire


def register(context: AdaptContext) -> None:
    """Let `context`, a connection, take `Ids` as parameters."""
    context.adapters.register_dumper(Ids, _IdsDumper)
