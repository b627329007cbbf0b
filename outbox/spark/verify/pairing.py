"""Records and listed ids side by side, where a transformation gives several records one id.

A sink lists such an id as often as it has sent it, perhaps in several slices of an epoch. So places and listings of an
id are paired, the first with the first. Places that are left over are records that Kafka has too often; listings that
are left over are lost records. The id does not say to which of two slices a place belongs, so their digests are
compared together. If no id is listed twice in an epoch, a plain join gives the same result with less work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def fans_out(entries: DataFrame) -> bool:
    """Whether an epoch of a sink lists an id twice."""
    from pyspark.sql import functions as F

    ids = entries.where("error IS NULL AND is_sink").groupBy("ledger_no", "batch").agg(F.flatten(F.collect_list("ids")))
    return not ids.toDF("ledger_no", "batch", "ids").where("size(ids) > size(array_distinct(ids))").isEmpty()


def paired(own: DataFrame, listed: DataFrame) -> DataFrame:
    """The full outer join of both by (id, own), in which each place and each listing is once. `extra`: the id was
    delivered before, by another epoch or batch, or more often than it is listed. `is_mixed`: several slices list it."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    whole = Window.partitionBy("id", "own")
    places = own.withColumn("nth", F.row_number().over(whole.orderBy("at", "topic_no", "partition", "place")))
    # Entries that are not checked yet come last: their records may not have been read.
    line = whole.orderBy(F.desc("is_judged"), "listed_at", "lane")
    group = F.struct("ledger_no", F.when(F.col("is_sink"), -1).otherwise(F.col("lane")), "batch")
    listings = listed.withColumns({
        "listing": F.row_number().over(line),
        "listings": F.count("*").over(whole),
        "is_again": group != F.first(group).over(line),
        "is_mixed": F.col("is_sink") & (F.min("lane").over(whole) < F.max("lane").over(whole)),
    }).drop("is_sink", "is_judged", "listed_at")  # fmt: skip
    listings = listings.withColumnsRenamed({"id": "listed_id", "own": "listed_own"})
    is_pair = (
        (places["id"] == listings["listed_id"])
        & (places["own"] == listings["listed_own"])
        & (F.least("nth", "listings") == listings["listing"])
    )
    extra = F.col("place").isNotNull() & (F.col("is_again") | (F.col("nth") > F.col("listings")))
    return places.join(listings, is_pair, "full_outer").withColumns({
        "id": F.coalesce("id", "listed_id"), "own": F.coalesce("own", "listed_own"),
        "extra": F.coalesce(extra, F.lit(False)), "is_mixed": F.coalesce("is_mixed", F.lit(False)),
    }).drop("nth", "listed_id", "listed_own", "listing", "listings", "is_again")  # fmt: skip


def batches(wanted: DataFrame, found: DataFrame) -> DataFrame:
    """`wanted` entries with what was `found` of them. Slices that share an id have one digest: the first of them gets
    the sums of all, once all of them can be checked."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    epoch = Window.partitionBy("ledger_no", "batch")
    joined = wanted.join(found, ["ledger_no", "lane", "batch"], "left")
    first = F.min(F.when(F.col("mixed") > 0, F.col("lane"))).over(epoch)
    is_one = F.col("is_sink") & (F.col("mixed") > 0)
    is_complete = F.expr("missing = 0 AND found = count")
    return joined.withColumns({
        "is_whole": F.when(is_one, F.min(is_complete & F.col("is_judged")).over(epoch) & (F.col("lane") == first))
        .otherwise(is_complete),
        "sums": F.when(is_one, F.sum("sums").over(epoch)).otherwise(F.col("sums")),
        "digest": F.when(is_one, F.sum("digest").over(epoch)).otherwise(F.col("digest")),
    })  # fmt: skip
