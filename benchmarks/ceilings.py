"""Each stage of a drain by itself, as fast as possible: the drain is compared with these."""

from __future__ import annotations

import time

from benchmarks.servers import Database, Fill, new_topic

CHUNK = 10_000


def copy_out(database: Database, records: int) -> float:
    begun = time.monotonic()
    with database.connection.cursor().copy("COPY outbox TO STDOUT (FORMAT binary)") as copy:
        for _ in copy:
            pass
    return records / (time.monotonic() - begun)


def produce(database: Database, servers: str, topic: str, fill: Fill, *, transactional: bool = False) -> float:
    """Ready messages, with the header of the record's id, through an idempotent producer."""
    from confluent_kafka import Producer

    rows = database.connection.execute(
        "SELECT id, kafka_key, kafka_value, kafka_header_keys, kafka_header_values FROM outbox ORDER BY id"
    ).fetchall()
    messages = [
        (key, value, [*zip(names, texts, strict=True), ("outbox-id", b"%d" % id_)])
        for id_, key, value, names, texts in rows
    ]
    del rows
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": "lz4",
            "linger.ms": 5,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
        }
    )
    producer.produce(
        new_topic(servers), b"", partition=0
    )  # the client asks for a producer id, which takes half a second
    assert not producer.flush(10)
    begun = time.monotonic()
    for key, value, headers in messages:
        producer.produce(topic, value, key, -1, None, None, 0, headers)
    assert not producer.flush(120)
    return len(messages) / (time.monotonic() - begun)


def delete(database: Database, records: int) -> float:
    """By arrays of ids, one statement each; empties the table."""
    from outbox.edges.postgres.common.int8_arrays import Ids, register

    connection = database.connection
    register(connection)
    ids = [row[0] for row in connection.execute("SELECT id FROM outbox ORDER BY id").fetchall()]
    arrays = [Ids(ids[place : place + CHUNK]) for place in range(0, len(ids), CHUNK)]
    begun = time.monotonic()
    for array in arrays:
        connection.execute("DELETE FROM outbox WHERE id = ANY(%s)", [array], prepare=True)
    return records / (time.monotonic() - begun)
