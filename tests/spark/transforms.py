"""Transformations that tests name by their dotted paths."""

import os
from functools import partial


def shaped(frame):
    """Filters k3 out, masks k1, routes k2 to another topic."""
    from pyspark.sql import functions as F

    masked = F.when(F.col("key") == "k1", F.lit("masked").cast("binary")).otherwise(F.col("value"))
    routed = F.when(F.col("key") == "k2", F.concat(F.col("topic"), F.lit("-routed"))).otherwise(F.col("topic"))
    return frame.where("key <> 'k3'").withColumn("value", masked).withColumn("topic", routed)


def only_some(frame):
    """Whole batches may hold none of these."""
    return frame.where("key = 'k6'")


def without_topics(frame):
    return frame.selectExpr("id", "NULLIF(topic, topic) AS topic", "key", "value")


fails_while = ""
"""A file; tests set it."""


def failing_for_now(frame):
    return frame.mapInArrow(partial(_fail, fails_while), frame.schema)


def _fail(place, batches):
    for batch in batches:
        if os.path.exists(place) and batch.num_rows:
            raise ValueError("not now")
        yield batch


def failing(frame):
    return frame.where("no_such_column = 1")


not_a_function = 1
