"""Counts ids that are in no topic and no table. It uses bitmaps: ten million ids are a few hundred rows of 4 kB
each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHOWN = 5
_BITS = 32_768  # of Spark's bitmaps


def absent(ids: DataFrame, low: int, high: int) -> tuple[int, list[int]]:
    """The number of positive ids from `low` to `high` that are not in the column `id`, and the first of them."""
    from pyspark.sql import functions as F

    inside = ids.where(F.col("id").between(low, high))
    maps = inside.groupBy(F.expr("bitmap_bucket_number(id)").alias("bucket")).agg(
        F.expr("bitmap_construct_agg(bitmap_bit_position(id))").alias("bits")
    )
    row = maps.agg(F.sum(F.expr("bitmap_count(bits)")).alias("there")).first()
    missing = high - low + 1 - ((row and row["there"]) or 0)
    return missing, list(islice(_first(maps, low, high), SHOWN)) if missing else []


def _first(maps: DataFrame, low: int, high: int) -> Iterator[int]:
    """All buckets, one row each."""
    counted = {row["bucket"]: row["ones"] for row in maps.selectExpr("bucket", "bitmap_count(bits) AS ones").collect()}
    for bucket in range((low - 1) // _BITS + 1, (high - 1) // _BITS + 2):
        begin, end = max(low, (bucket - 1) * _BITS + 1), min(high, bucket * _BITS)
        if counted.get(bucket, 0) == end - begin + 1:
            continue
        row = maps.where(f"bucket = {bucket}").first()
        bits = bytes(row["bits"]) if row is not None else bytes(_BITS // 8)
        for id_ in range(begin, end + 1):
            place = (id_ - 1) % _BITS
            if not bits[place // 8] >> place % 8 & 1:
                yield id_
