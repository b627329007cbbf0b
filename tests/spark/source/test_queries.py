"""The source and the sink as streaming queries, by Spark, on a real PostgreSQL and a real Kafka."""

import time
import uuid
from contextlib import contextmanager

import pytest

from outbox.spark import KafkaSink, stream
from tests.support.topics import create_topic, read_topic

pytestmark = pytest.mark.slow  # the JVM that it starts needs this


def wait_for(condition, query, timeout_s=90):
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        assert query.exception() is None
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


@contextmanager
def running(spark, outbox, sink, place, transform=lambda frame: frame, **options):
    given = {"url": outbox.url, "table": outbox.table, "maxRecords": 400, "slices": 2, **options}
    frame = transform(spark.readStream.format("outbox").options(**given).load())
    query = Started(frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(place)))
    try:
        yield query
    finally:
        query.stop()


class Started:
    """A query. Spark gives its Python processes ten seconds to start, which is little on a busy machine: then the query
    starts again, as in the engine."""

    def __init__(self, writer):
        self._writer, self._left = writer, 5
        self._query = writer.start()

    def exception(self):
        error = self._query.exception()
        return None if error is not None and self._begins_again(error) else error

    def _begins_again(self, error):
        if "failed to connect back" not in str(error) or not self._left:
            return False
        self._left -= 1
        self._query = self._writer.start()
        return True

    def await_termination(self, timeout_s):
        while True:
            try:
                return self._query.awaitTermination(timeout_s)
            except Exception as error:
                if not self._begins_again(error):
                    raise

    def stop(self):
        self._query.stop()


def ids_on(servers, topic):
    return sorted(int(dict(message.headers)["id"]) for message in read_topic(servers, topic))


def test_a_query_that_fails_and_is_started_again_delivers_everything_once(
    spark, outbox_table, bootstrap_servers, tmp_path
):
    """The first epoch fails after one slice was delivered, and the table idles at the end; a transformation filters."""
    topic, name = create_topic(bootstrap_servers, 3), f"s-{uuid.uuid4().hex[:8]}"
    later, place = f"later-{name}", tmp_path / "checkpoint"

    def sink():
        return KafkaSink(name, bootstrap_servers, slices=2, id_header="id")

    def some(frame):
        return frame.where("id % 10 <> 0")

    outbox_table.insert(topic, 600)
    outbox_table.run("UPDATE {table} SET kafka_topic = %s WHERE kafka_key = 'k1' AND id > 300", later)
    with (
        running(spark, outbox_table, sink(), place, some) as query,
        pytest.raises(Exception, match="Create these topics"),
    ):
        query.await_termination(90)
    create_topic(bootstrap_servers, 1, name=later)
    with running(spark, outbox_table, sink(), place, some) as query:
        wait_for(lambda: outbox_table.count() == 0, query)
        outbox_table.insert(topic, 5)
        wait_for(lambda: outbox_table.count() == 0, query)
        assert stream.finish(outbox_table.url, outbox_table.table)
    everything = ids_on(bootstrap_servers, topic) + ids_on(bootstrap_servers, later)
    assert sorted(everything) == [number for number in range(1, 606) if number % 10]

    # All records are purged, but the ledger knows another query: a new checkpoint cannot continue under this name.
    outbox_table.insert(topic, 5)
    match = "checkpoint was deleted or moved, restore it"
    with running(spark, outbox_table, sink(), tmp_path / "another") as query, pytest.raises(Exception, match=match):
        query.await_termination(90)


@pytest.mark.part
def test_available_now_ends_and_the_next_run_purges(spark, outbox_table, bootstrap_servers, tmp_path):
    topic, place = create_topic(bootstrap_servers, 1), str(tmp_path / "checkpoint")
    sink = KafkaSink(f"s-{uuid.uuid4().hex[:8]}", bootstrap_servers, slices=1, id_header="id")
    options = {"url": outbox_table.url, "table": outbox_table.table, "slices": 1}
    outbox_table.insert(topic, 20)
    for expected in (20, 25):
        frame = spark.readStream.format("outbox").options(**options).load()
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", place)
        assert Started(writer.trigger(availableNow=True)).await_termination(90)
        assert ids_on(bootstrap_servers, topic) == list(range(1, expected + 1))
        outbox_table.insert(topic, 5)
    assert outbox_table.count() == 10


def test_a_batch_read_changes_nothing(spark, outbox_table):
    outbox_table.insert("t", 20)
    outbox_table.run("DELETE FROM {table} WHERE id BETWEEN 5 AND 12")
    frame = spark.read.format("outbox").options(url=outbox_table.url, table=outbox_table.table, slices=3).load()
    assert [row["id"] for row in frame.orderBy("id").collect()] == [*range(1, 5), *range(13, 21)]
    assert outbox_table.run("SELECT count(*) FROM {table} WHERE leader_id IS NOT NULL") == [(0,)]


def test_spark_reports_wrong_options(spark):
    with pytest.raises(Exception, match="url is missing: set it, for instance"):
        spark.read.format("outbox").option("table", "outbox").load()
