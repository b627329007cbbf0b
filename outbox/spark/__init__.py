"""The data pipeline on PySpark: a source that reads the outbox and a Kafka sink that delivers exactly once.

    spark = outbox.spark.session("orders")                      # a session that finds Java and the Kafka connector
    outbox.spark.register(spark)                                # spark.read.format("outbox"), spark.readStream....
    records = spark.readStream.format("outbox").option("url", DATABASE_URL).load()
    sink = outbox.spark.KafkaSink(name="orders", servers="localhost:9092", slices=4)
    query = records.writeStream.foreachBatch(sink).option("checkpointLocation", PLACE).start()

The records pass through the executors only. The modules, from the outside in:

    start.py     `session()`: Java, connector, Python and addresses of a session
    source.py    the DataSource `outbox`; its statements and what they protect are in `stream.py`, its options in
                 `options.py`, what executors read in `reading.py`, what runs beside a batch in `beside.py`
    sink.py      `KafkaSink`, on the driver: slices, sentinels, what is known before an epoch begins
    writing.py   slices in an executor: fence, ledger, records, entry, commit; `plan.py` is what it must know,
                 `columns.py` which columns may come,
                 `fencing.py` the producers and the ledger, which live as long as the process
    engine.py    `manage.py harvest --engine spark`: the worker of the elected lane, which starts `driver.py`, the
                 process with the query; `job.py` is what that is told, `setup.py` makes it from settings and
                 flags, `troubles.py` reads what became of a query
    entries.py   the ledger entry of a slice; pure
    expressions.py  SQL expressions: the checksum of a record, equal to that of `core.exactly_once.ledger`, and its
    slice audit.py     the proof that all was delivered, behind `outbox_audit`: `audit_reading.py` is what it reads,
                 `audit_sinks.py` finds the ledgers of sinks, `audit_pairing.py` pairs records that share an id,
                 `audit_absent.py` counts ids that are nowhere, `verdict.py` is what it is asked and finds

Names are resolved on first use: importing this package needs neither PySpark nor confluent-kafka.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from outbox.exceptions import MissingExtra, missing_extra

if TYPE_CHECKING:
    from outbox.spark.sink import KafkaSink as KafkaSink
    from outbox.spark.source import register as register
    from outbox.spark.start import session as session

_HOMES = {
    "KafkaSink": "outbox.spark.sink",
    "register": "outbox.spark.source",
    "session": "outbox.spark.start",
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
