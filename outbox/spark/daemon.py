"""The process that Spark forks its Python workers from, with everything imported that they will want.

Otherwise each worker imports pandas, pyarrow and the Kafka client for itself: about a second of processor time, again
and again when many start. `start.session()` names this module in `spark.python.daemon.module`.
"""

import confluent_kafka  # noqa: F401
import pandas  # noqa: F401
import pyarrow.compute  # noqa: F401
from pyspark.daemon import manager

import outbox.edges.transactions
import outbox.spark.writing  # noqa: F401

if __name__ == "__main__":
    manager()
