"""Debezium's outbox event router on Kafka Connect standalone, as a yardstick: the same kind of rows, the same machine.

    python -m benchmarks.debezium --lock        writes the lock file of its jars again

Its jars come from the Maven registry, by jgo, as Kafka's do for the devstack; the checksums of `debezium.lock.json`
verify them. It reads the write-ahead log by pgoutput, so it gets a PostgreSQL of its own with wal_level=logical, and
Java's second compiler, unlike the broker. Its queue and batches are larger than its defaults, which were slower here.
It promises at-least-once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer, TopicPartition

from benchmarks.report import say
from benchmarks.servers import PARTITIONS, new_topic
from outbox.devstack import kafka_install
from outbox.devstack.postgres import Postgres
from outbox.downloads import cache as store
from outbox.downloads import installs, lock, maven

LOCK_FILE = Path(__file__).with_name("debezium.lock.json")
WANTED = [
    "io.debezium:debezium-connector-postgres:3.3.1.Final",
    "org.apache.kafka:connect-runtime:4.1.2",
    "org.apache.kafka:connect-json:4.1.2",
    "org.slf4j:slf4j-simple:1.7.36",
]
START_TIMEOUT_S, TIMEOUT_S = 90.0, 180.0
_TABLE = (
    "CREATE TABLE outboxevent (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype varchar(255) NOT NULL, "
    "aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload text NOT NULL)"
)
_FILL = (
    "INSERT INTO outboxevent (aggregatetype, aggregateid, type, payload) "
    "SELECT 'bench', 'key-' || n %% %s, 'benchmark', rpad(n::text, %s, 'x') FROM generate_series(1, %s) n"
)


def rate(servers: str, records: int, keys: int = 1_000, value_bytes: int = 100) -> float:
    """Records per second, from the commit of the backlog until the last one is in the topic."""
    topic = new_topic(servers)
    with Postgres(settings={"wal_level": "logical"}) as server, psycopg.connect(server.url, autocommit=True) as db:
        db.execute(_TABLE.encode())
        with _connect(server, servers, topic) as log:
            begun_with = _await_streaming(db, servers, topic, log)
            begun = time.monotonic()
            db.execute(_FILL.encode(), [keys, value_bytes, records])
            committed = time.monotonic()
            _await_records(servers, topic, begun_with + records, log)
            # Debezium cannot send records of the backlog before it is committed: the clock runs from the commit.
            took_s = time.monotonic() - committed
            say(f"Debezium: {records:,} records written in {committed - begun:.1f} s, sent {took_s:.1f} s after that")
            return records / took_s


@contextmanager
def _connect(server: Postgres, servers: str, topic: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="outbox-debezium-") as name:
        folder = Path(name)
        (folder / "worker.properties").write_text(_lines(_worker(folder, servers)))
        (folder / "connector.properties").write_text(_lines(_connector(server, topic)))
        log = folder / "connect.log"
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [
                    *(str(installs.java()), "-Xmx768m", "-XX:+UseSerialGC", "-cp", _classpath()),
                    *("org.apache.kafka.connect.cli.ConnectStandalone", str(folder / "worker.properties")),
                    str(folder / "connector.properties"),
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=kafka_install.ENVIRONMENT,
            )
            try:
                yield log
            finally:
                process.kill()
                process.wait()


def _worker(folder: Path, servers: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": servers,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "offset.storage.file.filename": folder / "offsets",
        "offset.flush.interval.ms": 1000,
        "listeners": "HTTP://127.0.0.1:0",
        "producer.acks": "all",
        "producer.enable.idempotence": "true",
        "producer.compression.type": "lz4",
        "producer.linger.ms": 5,
        "producer.batch.size": 262144,
    }


def _connector(server: Postgres, topic: str) -> dict[str, Any]:
    return {
        "name": "bench",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": 1,
        "plugin.name": "pgoutput",
        "database.hostname": "127.0.0.1",
        "database.port": int(server.port),
        "database.user": "postgres",
        "database.password": server.password,
        "database.dbname": server.database,
        "topic.prefix": "bench",
        "table.include.list": "public.outboxevent",
        "snapshot.mode": "no_data",
        "max.batch.size": 8192,
        "max.queue.size": 65536,
        "poll.interval.ms": 10,
        "tombstones.on.delete": "false",
        "transforms": "outbox",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        "transforms.outbox.route.topic.replacement": topic,
    }


def _lines(properties: dict[str, Any]) -> str:
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def _classpath() -> str:
    jars = [store.Jar(**jar) for jar in json.loads(LOCK_FILE.read_text())]
    return ":".join(map(str, store.jars("Debezium and Kafka Connect", jars)))


def _await_streaming(db: Any, servers: str, topic: str, log: Path) -> int:
    """Wait for a record that was written after the slot was made. Returns the number of records that arrived."""
    give_up_at = time.monotonic() + START_TIMEOUT_S
    while not (found := _arrived(servers, topic)):
        db.execute(_FILL.encode(), [1, 1, 1])
        _check(give_up_at, log)
        time.sleep(1.0)
    written = -1
    while written != found:  # those in flight
        written = found
        time.sleep(1.0)
        found = _arrived(servers, topic)
    return found


def _await_records(servers: str, topic: str, records: int, log: Path) -> None:
    give_up_at = time.monotonic() + TIMEOUT_S
    while _arrived(servers, topic) < records:
        _check(give_up_at, log)
        time.sleep(0.02)


def _arrived(servers: str, topic: str) -> int:
    consumer = _watcher(servers)
    ends = (consumer.get_watermark_offsets(TopicPartition(topic, number), 10) for number in range(PARTITIONS))
    return sum(end for _, end in ends)


@cache
def _watcher(servers: str) -> Consumer:
    return Consumer({"bootstrap.servers": servers, "group.id": "bench-watch"})


def _check(give_up_at: float, log: Path) -> None:
    if time.monotonic() > give_up_at:
        lines = log.read_text(errors="replace").splitlines()
        told = [line for line in lines if "ERROR" in line or "WARN" in line]
        sys.exit("Debezium did not deliver the records:\n" + "\n".join([*told[-20:], "...", *lines[-5:]]))


def write_lock() -> None:
    """One after the other, as Kafka's: a version that an earlier one has named stays."""
    with store.exclusively() as root, store.staging(root) as private:
        needed: dict[str, str] = {}
        for coordinate in (WANTED[1], WANTED[0], *WANTED[2:]):
            for found in maven.resolve([coordinate], private):
                needed.setdefault(found.rpartition(":")[0], found)
        jars = lock._hash(sorted(needed.values()), private)
    LOCK_FILE.write_text(json.dumps(jars, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lock", action="store_true", required=True)
    parser.parse_args()
    write_lock()
