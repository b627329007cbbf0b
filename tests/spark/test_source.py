"""The source `outbox`, streaming and batch, on a real PostgreSQL."""

import uuid

from outbox.spark import KafkaSink
from tests.support.topics import create_topic, read_topic


def wait_for(condition, timeout_s=60):
    import time

    give_up_at = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


def stream_of(spark, outbox, **options):
    given = {"url": outbox.url, "table": outbox.table, "maxRecords": 400, "slices": 2, **options}
    return spark.readStream.format("outbox").options(**given).load()


def test_a_stream_delivers_and_purges(spark, outbox_table, bootstrap_servers, tmp_path):
    topic = create_topic(bootstrap_servers, 3)
    outbox_table.insert(topic, 1000)
    sink = KafkaSink(f"s-{uuid.uuid4().hex[:8]}", bootstrap_servers, slices=2, id_header="id")
    query = (
        stream_of(spark, outbox_table)
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        wait_for(lambda: query.exception() is not None or outbox_table.count() == 0)
        assert query.exception() is None
    finally:
        query.stop()
    received = read_topic(bootstrap_servers, topic)
    assert len(received) == 1000
    assert {message.value for message in received} == {b"value %d" % number for number in range(1000)}
