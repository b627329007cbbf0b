"""How fast one process moves a full table to Kafka, exactly once, and where the time goes.

    python benchmarks/drain.py [--records 400000] [--keys 1000] [--lanes 1] [--value-bytes 100] [--headers 0]

Needs DATABASE_URL (a server on which it may create a database) and OUTBOX_BOOTSTRAP_SERVERS; `make bench` starts both.
Every record is checked afterwards: none missing, none twice, every key in order. Figures of one machine, to be compared
with the ceilings printed beside them and with nothing else.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
SERVER = os.environ["DATABASE_URL"]
PARTITIONS = 8


class Host:
    """Trusts its lanes always: the drain measures the worker, not the election."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.ended = threading.Event()

    def may_start(self, lane: int) -> bool:
        return True

    may_send = may_start

    def doubt(self, lane: int) -> None:
        print("doubt", lane)

    refresh = step_down = doubt

    def finished(self, lane: int) -> None:
        self.ended.set()

    def emit(self, event: object) -> None:
        print(event)

    def fatal(self, error: BaseException) -> None:
        self.error = error


def main() -> None:
    arguments = parse_arguments()
    name = f"drain_{os.getpid()}"
    url = urlunsplit(urlsplit(SERVER)._replace(path=f"/{name}"))
    os.environ["DATABASE_URL"] = url
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    import psycopg

    with psycopg.connect(SERVER, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
        try:
            run(arguments, url)
        finally:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--headers", type=int, default=0)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ceilings", action="store_true", help="measure the stages alone as well")
    parser.add_argument("--profile", action="store_true")
    return parser.parse_args()


def run(arguments: argparse.Namespace, url: str) -> None:
    import django
    import psycopg
    from django.core.management import call_command

    django.setup()
    call_command("migrate", "outbox", verbosity=0)
    with psycopg.connect(url, autocommit=True) as connection:
        describe(connection, arguments)
        for number in range(arguments.runs):
            topic = new_topic()
            fill(connection, arguments, topic)
            if arguments.ceilings and not number:
                ceilings(connection, arguments, topic)
                topic = new_topic()
                fill(connection, arguments, topic)
            drain(connection, arguments, topic)
            check(connection, arguments, topic)


def describe(connection: Any, arguments: argparse.Namespace) -> None:
    names = ("server_version", "fsync", "full_page_writes", "synchronous_commit", "autovacuum")
    shown = {name: connection.execute(f"SHOW {name}").fetchone()[0] for name in names}
    print(" ".join(f"{name}={value}" for name, value in shown.items()), "acks=all", f"cores={os.cpu_count()}")
    print(vars(arguments))


def new_topic() -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = f"drain-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": os.environ["OUTBOX_BOOTSTRAP_SERVERS"]})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    return topic


def fill(connection: Any, arguments: argparse.Namespace, topic: str) -> None:
    connection.execute("TRUNCATE outbox")
    connection.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values) "
        "SELECT %s, 'key-' || n %% %s, rpad(n::text, %s, 'x'), "
        "ARRAY(SELECT 'header-' || h FROM generate_series(1, %s) h), "
        "ARRAY(SELECT 'value of the header ' || h FROM generate_series(1, %s) h) FROM generate_series(1, %s) n",
        [topic, arguments.keys, arguments.value_bytes, arguments.headers, arguments.headers, arguments.records],
    )
    connection.execute("VACUUM ANALYZE outbox")
    connection.execute("CHECKPOINT")


def drain(connection: Any, arguments: argparse.Namespace, topic: str) -> None:
    from django.conf import settings

    from outbox.conf import parse
    from outbox.harvest.exactly_once import ExactlyOnceFactory

    conf = parse(
        {
            **settings.OUTBOX,
            "NAME": topic,
            "DELIVERY": "exactly-once",
            "LANES": arguments.lanes,
            "BATCH_MAX": arguments.batch,
            "BOOTSTRAP_SERVERS": os.environ["OUTBOX_BOOTSTRAP_SERVERS"],
        }
    )
    connection.execute("TRUNCATE outbox_state, outbox_purged")
    factory, hosts, workers = ExactlyOnceFactory(), [], []
    profile = start_profile() if arguments.profile else None
    begun, used = time.monotonic(), os.times()
    for lane in range(arguments.lanes):
        host = Host()
        worker = factory(conf, lane, uuid.uuid4(), 1, host)
        hosts.append(host)
        workers.append(worker)
        worker.start()
    while sum(worker.statistics().delivered for worker in workers) < arguments.records:
        for host in hosts:
            if host.error:
                raise host.error
        time.sleep(0.01)
    delivered_s = time.monotonic() - begun
    for worker, host in zip(workers, hosts, strict=True):
        worker.finish(time.monotonic() + 10)
        assert host.ended.wait(15)
        assert worker.join(10)
    took_s = time.monotonic() - begun
    now = os.times()
    if profile is not None:
        show_profile(profile)
    print(
        f"drain: {arguments.records / delivered_s:,.0f} records/s until the last commit, "
        f"{arguments.records / took_s:,.0f}/s until the last purge; "
        f"CPU of this process {now.user - used.user:.2f} + {now.system - used.system:.2f} s, "
        f"memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB"
    )
    for worker in workers:
        found = worker.statistics()
        stages = " ".join(f"{name}={seconds:.2f}" for name, seconds in found.stages.items())
        print(f"  lane {found.lane}: batches={found.batches} takeovers={found.takeovers} {stages}")


def start_profile() -> Any:
    import cProfile

    profile = cProfile.Profile()
    threading.setprofile(lambda *_: profile.enable())
    return profile


def show_profile(profile: Any) -> None:
    import pstats

    pstats.Stats(profile).sort_stats("tottime").print_stats(25)


def ceilings(connection: Any, arguments: argparse.Namespace, topic: str) -> None:
    """Each stage alone, as fast as it goes."""
    from confluent_kafka import Producer

    begun = time.monotonic()
    with connection.cursor().copy("COPY outbox TO STDOUT (FORMAT binary)") as copy:
        for _ in copy:
            pass
    print(f"ceiling, binary copy out: {arguments.records / (time.monotonic() - begun):,.0f}/s")
    rows = connection.execute("SELECT kafka_key, kafka_value FROM outbox ORDER BY id").fetchall()
    producer = Producer(
        {
            "bootstrap.servers": os.environ["OUTBOX_BOOTSTRAP_SERVERS"],
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 5,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    begun = time.monotonic()
    for key, value in rows:
        producer.produce(topic, value, key)
    producer.flush(60)
    print(f"ceiling, idempotent produce: {arguments.records / (time.monotonic() - begun):,.0f}/s")
    ids = [row[0] for row in connection.execute("SELECT id FROM outbox ORDER BY id").fetchall()]
    from outbox.edges.int8_arrays import Ids, register

    register(connection)
    arrays = [Ids(ids[n : n + arguments.batch]) for n in range(0, len(ids), arguments.batch)]
    begun = time.monotonic()
    for array in arrays:
        connection.execute("DELETE FROM outbox WHERE id = ANY(%s)", [array], prepare=True)
    print(f"ceiling, delete by id array: {arguments.records / (time.monotonic() - begun):,.0f}/s")


def check(connection: Any, arguments: argparse.Namespace, topic: str) -> None:
    """Independently: everything that a read_committed consumer sees."""
    from confluent_kafka import Consumer, TopicPartition

    assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["OUTBOX_BOOTSTRAP_SERVERS"],
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    unfinished, last, seen = set(range(PARTITIONS)), dict[bytes, int](), 0
    while unfinished:
        for message in consumer.consume(10_000, 1.0):
            error = message.error()
            if error is not None:
                assert error.name() == "_PARTITION_EOF", error
                unfinished.discard(message.partition())
                continue
            number = int(message.value()[:12].rstrip(b"x"))
            assert number > last.get(message.key(), 0), f"key {message.key()!r} went from {last} to {number}"
            last[message.key()] = number
            seen += 1
    consumer.close()
    assert seen == arguments.records, f"{seen} of {arguments.records} records arrived"
    print(f"  checked: {seen} records, none missing, none twice, {len(last)} keys in order")


if __name__ == "__main__":
    main()
