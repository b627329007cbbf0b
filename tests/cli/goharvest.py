"""A stand-in for the goharvest-compatible harvester: its table, its election and its three statements, as its documents
state them.

One group with the client's default assignor, leader by partition 0, heartbeats ``{ns}%{name}``, marks by ``leader_id``,
a delete per acknowledged record. Run as a program: ``goharvest.py BOOTSTRAP DSN GROUP NAME``. It reports each step on
standard output. On SIGTERM it ends at once, like any process that handles no signal.
"""

import sys
import time
import uuid

DDL = """
CREATE TABLE {table} (
    id bigserial PRIMARY KEY,
    create_time timestamp with time zone NOT NULL,
    kafka_topic varchar(249) NOT NULL,
    kafka_key varchar(100) NOT NULL,
    kafka_value varchar(10000),
    kafka_header_keys text[] NOT NULL,
    kafka_header_values text[] NOT NULL,
    leader_id uuid
)"""
STASH = """
INSERT INTO {table}
    (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, leader_id)
SELECT NOW(), '{topic}', 'key-' || n % {keys}, 'value-' || n, ARRAY['Seq'], ARRAY[(n / {keys})::text], {leader}
FROM generate_series({first}, {last}) AS n ORDER BY n"""
MARK = """
UPDATE outbox SET leader_id = %(leader)s
WHERE id IN (SELECT id FROM outbox WHERE leader_id IS NULL OR leader_id != %(leader)s ORDER BY id LIMIT 100)
RETURNING id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values"""
PURGE = "DELETE FROM outbox WHERE id = %s"


def main(bootstrap: str, dsn: str, group: str, name: str) -> None:
    import psycopg
    from confluent_kafka import Consumer, Producer

    leader: list[uuid.UUID] = []

    def assigned(consumer: Consumer, partitions: list) -> None:
        if any(partition.partition == 0 for partition in partitions):
            leader[:] = [uuid.uuid4()]
            say("acquired")

    def revoked(consumer: Consumer, partitions: list) -> None:
        if leader and any(partition.partition == 0 for partition in partitions):
            leader.clear()
            say("revoked")

    consumer = (
        Consumer(  # with the shortest session that brokers allow: a test that kills it waits until the session ends
            {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, "session.timeout.ms": 6000}
        )
    )
    consumer.subscribe([f"{group}.neli"], on_assign=assigned, on_revoke=revoked)
    heartbeats = Producer({"bootstrap.servers": bootstrap, "delivery.timeout.ms": 5000, "linger.ms": 0})
    records = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    say("started")
    with psycopg.connect(dsn, autocommit=True) as connection:
        while True:
            consumer.poll(0.1)
            if leader:
                heartbeats.produce(f"{group}.neli", f"{time.time_ns()}%{name}", partition=0)
                heartbeats.poll(0)
                harvest(connection, records, leader[0])


def harvest(connection, records, leader: uuid.UUID) -> None:
    for row in sorted(connection.execute(MARK, {"leader": leader}).fetchall()):
        id_, topic, key, value, names, values = row
        records.produce(topic, value, key, headers=list(zip(names, values, strict=True)))
        records.flush()  # one record at a time is slower, but keeps the same order as the shards of the original
        connection.execute(PURGE, [id_])


def say(what: str) -> None:
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
