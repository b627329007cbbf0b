"""The data pipeline on PySpark: a source that reads the outbox and a Kafka sink that delivers exactly once.

    spark = outbox.spark.session("orders")                      # a session that finds Java and the Kafka connector
    outbox.spark.register(spark)                                # spark.read.format("outbox"), spark.readStream....
    records = spark.readStream.format("outbox").option("url", DATABASE_URL).load()
    sink = outbox.spark.KafkaSink(name="orders", servers="localhost:9092", slices=4)
    query = records.writeStream.foreachBatch(sink).option("checkpointLocation", PLACE).start()

The records pass through the executors only. The packages, from the outside in:

    sessions.py  `session()`: the Java, connector, Python and addresses of a session
    source/      the DataSource `outbox`, in `datasource.py`; its statements and their guards, the reader of the
                 executors, and the job that runs beside a batch
    sink/        `KafkaSink` on the driver; slices in an executor (`slice_writer.py`): fence, ledger, records, entry,
                 commit; the entry of a slice in the ledger
    engine/      `manage.py harvest --engine spark`: the worker of the elected lane, which starts `driver.py`, the
                 process with the query
    verify/      the proof that every record was delivered, for `outbox_verify`

Names are resolved on first use: importing this package needs neither PySpark nor confluent-kafka.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from outbox.exceptions import MissingExtra, missing_extra

if TYPE_CHECKING:
    from outbox.spark.sessions import session as session
    from outbox.spark.sink.kafka_sink import KafkaSink as KafkaSink
    from outbox.spark.source.datasource import register as register

_HOMES = {
    "KafkaSink": "outbox.spark.sink.kafka_sink",
    "register": "outbox.spark.source.datasource",
    "session": "outbox.spark.sessions",
}

__all__ = ["KafkaSink", "register", "session"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except MissingExtra:
        raise
    except ImportError as error:
        missing_extra("spark", error)
