"""The process that Spark forks its Python workers from, with everything imported that they will want.

Otherwise each worker imports pandas, pyarrow and the Kafka client for itself: about a second of processor time, again
and again when many start. `start.session()` names this module in `spark.python.daemon.module`.
"""

from importlib import import_module

from pyspark.daemon import manager

for wanted in ("pandas", "pyarrow.compute", "confluent_kafka", "outbox.edges.transactions", "outbox.spark.writing"):
    import_module(wanted)

if __name__ == "__main__":
    manager()  # type: ignore[no-untyped-call]
