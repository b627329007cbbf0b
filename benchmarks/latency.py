"""How long after its commit a record reaches a read_committed consumer, at a steady rate of one-record transactions.

    python benchmarks/latency.py [--rate 200] [--seconds 15] [--silence 0]

Needs what `drain.py` needs. Writer, harvester and consumer share the machine, so figures of a busy one mean little.
With --silence S, single records S seconds apart: what the first one after a pause costs.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
import uuid
from statistics import median
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from drain import SERVER, Host, new_topic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--silence", type=float, default=0)
    arguments = parser.parse_args()
    name = f"latency_{os.getpid()}"
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


def run(arguments: argparse.Namespace, url: str) -> None:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", "outbox", verbosity=0)
    topic = new_topic()
    seen: dict[int, float] = {}
    over = threading.Event()
    consumer = threading.Thread(target=consume, args=(topic, seen, over), daemon=True)
    consumer.start()
    host = Host()
    worker = harvest(topic, host)
    pause_s = arguments.silence or 1 / arguments.rate
    count = int(arguments.seconds / pause_s)
    written = write(url, topic, count, pause_s)
    give_up_at = time.monotonic() + 10
    while len(seen) < count and time.monotonic() < give_up_at:
        time.sleep(0.05)
    over.set()
    worker.finish(time.monotonic() + 5)
    worker.join(10)
    taken = sorted(seen[n] - at for n, at in written.items() if n in seen)
    assert len(taken) == count, f"{len(taken)} of {count} arrived"
    found = worker.statistics()
    stages = " ".join(f"{name}={seconds / found.batches * 1000:.1f}" for name, seconds in found.stages.items())
    shown = f"every {arguments.silence:g} s" if arguments.silence else f"{arguments.rate:g}/s"
    print(
        f"latency {shown}: median {median(taken) * 1000:.1f} ms, p99 {taken[int(count * 0.99)] * 1000:.1f} ms, "
        f"max {taken[-1] * 1000:.1f} ms, {count} records; load {os.getloadavg()[0]:.1f}"
    )
    print(f"  {found.batches} batches, ms each: {stages}")


def harvest(topic: str, host: Host) -> Any:
    from django.conf import settings

    from outbox.conf import parse
    from outbox.harvest.exactly_once import ExactlyOnceFactory

    servers = os.environ["OUTBOX_BOOTSTRAP_SERVERS"]
    conf = parse({**settings.OUTBOX, "NAME": topic, "DELIVERY": "exactly-once", "BOOTSTRAP_SERVERS": servers})
    worker = ExactlyOnceFactory()(conf, 0, uuid.uuid4(), 1, host)
    worker.start()
    while worker.statistics().phase != "ready":
        time.sleep(0.05)
    return worker


def write(url: str, topic: str, count: int, pause_s: float) -> dict[int, float]:
    import psycopg

    written, due = {}, time.monotonic() + 1
    with psycopg.connect(url) as connection:
        for number in range(count):
            time.sleep(max(0.0, due - time.monotonic()))
            connection.execute(
                "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, %s)",
                [topic, f"key-{number % 100}", str(number)],
            )
            connection.commit()
            written[number] = time.monotonic()
            due += pause_s
    return written


def consume(topic: str, seen: dict[int, float], over: threading.Event) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["OUTBOX_BOOTSTRAP_SERVERS"],
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 500,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(8)])
    while not over.is_set():
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            value = message.value()
            assert value is not None
            seen[int(value)] = time.monotonic()
    consumer.close()


if __name__ == "__main__":
    main()
