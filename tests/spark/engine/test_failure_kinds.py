"""The meaning of Spark's error texts for the engine."""

import pytest

from outbox.spark.engine.failure_kinds import FailureKind, judge

SOURCE = """[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python data source performs latestOffset: \
Traceback (most recent call last):
  File "outbox/spark/source/datasource.py", line 140, in latestOffset
    self._once(self._advance)
outbox.spark.source.statements.Fenced: Another driver has taken over the outbox table "o" from 'spark vm'.
 SQLSTATE: 38000"""
TASK = """[STREAM_FAILED] Query [id = 1] terminated with exception: An exception was raised by the Python Proxy.
Traceback (most recent call last):
py4j.protocol.Py4JJavaError: An error occurred while calling o1.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 3.0 failed 4 times
outbox.spark.sink.plan.SliceFailed: The records need topics that Kafka does not have: 'x' (unknown).
"""
CASES = [
    (SOURCE, FailureKind.FENCED, "Another driver has taken over"),
    (TASK, FailureKind.OUTAGE, "The records need topics"),
    (
        SOURCE + "\noutbox.spark.entries.OtherQuery: The ledger belongs to another.",
        FailureKind.REFUSED,
        "The ledger belongs",
    ),
    ("outbox.spark.sink.plan.RejectedByKafka: Kafka rejects it", FailureKind.OUTAGE, "Kafka rejects it"),
    ("outbox.spark.sink.plan.RecordUnfit: A record has no topic", FailureKind.REFUSED, "A record has no topic"),
    ("outbox.spark.sink.columns.WrongColumns: id is string", FailureKind.REFUSED, "id is string"),
    ("x\npsycopg.OperationalError: server closed the connection", FailureKind.OUTAGE, "server closed"),
    ("cimpl.KafkaException: KafkaError{code=_TRANSPORT}", FailureKind.OUTAGE, "KafkaError"),
    ("java.io.IOException: Python worker failed to connect back to the JVM", FailureKind.OUTAGE, "java.io.IOException"),
    ("ExecutorLostFailure (executor 1 exited)", FailureKind.OUTAGE, "ExecutorLostFailure"),
    ("Traceback\n  File\nValueError: no such colour", FailureKind.UNKNOWN, "ValueError: no such colour"),
    ("[DIVIDE_BY_ZERO] Division by zero", FailureKind.UNKNOWN, "[DIVIDE_BY_ZERO]"),
    ("", FailureKind.UNKNOWN, "Spark gave no reason"),
]


@pytest.mark.parametrize(("text", "kind", "words"), CASES)
def test_the_worst_that_is_named_counts(text, kind, words):
    found = judge(text)
    assert (found.kind, found.text[: len(words)]) == (kind, words)
