"""How fast at-least-once harvesting is, beside the older way of working.

    python -m outbox.devstack run -- python benchmarks/harvest.py [--rounds N] [--records N] [--keys N] [--quick]

A backlog is written, then emptied by a worker; the clock runs from the worker's start to the last DELETE, so starting
the Kafka clients counts. The yardstick is `baseline_one_by_one.py`: one DELETE per record, eight shards. Rounds of both
take turns, so that a slow moment of the machine hits both; medians are compared, smallest and largest are shown. A
yardstick below 2,000 records/s does not count: then the machine was busy with something else.
Two rows each: many keys, and a single hot key, of which one record at a time may be undecided in both.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

BASELINE_MIN = 2_000
HOT_RECORDS = 1_000
TIMEOUT_S = 120.0
DATABASE = f"outbox_benchmark_{os.getpid()}"


class TrustingHost:
    """The election's part: this lane is ours."""

    def may_start(self, lane: int) -> bool:
        return True

    may_send = may_start

    def lanes_owned(self) -> int:
        return 1

    def refresh(self, lane: int) -> None:
        raise AssertionError("a remark without faults")

    def fatal(self, error: BaseException) -> None:
        raise error

    def _ignore(self, what: object) -> None: ...

    doubt = step_down = finished = emit = _ignore


def main() -> None:
    options = arguments()
    url, servers = setup_django()
    import psycopg
    from django.core.management import call_command
    from django.db import connection

    created = create_database(connection)
    try:
        call_command("migrate", "outbox", verbosity=0, skip_checks=True)
        with psycopg.connect(f"{url.rpartition('/')[0]}/{DATABASE}", autocommit=True) as db:
            describe(db, options)
            measure(db, servers, options)
    finally:
        drop_database(connection, created)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=200_000, help="of our rows; the yardstick gets a tenth")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything, once")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.records = 1, options.records // 10
    return options


def setup_django() -> tuple[str, str]:
    if not {"DATABASE_URL", "OUTBOX_BOOTSTRAP_SERVERS"} <= os.environ.keys():
        sys.exit("Run: python -m outbox.devstack run -- python benchmarks/harvest.py")
    url, servers = os.environ["DATABASE_URL"], os.environ["OUTBOX_BOOTSTRAP_SERVERS"]
    import django
    import environ
    from django.conf import settings

    settings.configure(
        DATABASES={"default": environ.Env().db("DATABASE_URL")},
        INSTALLED_APPS=["outbox"],
        USE_TZ=True,
        OUTBOX={"BOOTSTRAP_SERVERS": servers, "DELIVERY": "at-least-once", "METRICS_INTERVAL": 3600},
    )
    django.setup()
    return url, servers


def create_database(connection: Any) -> str:
    before = str(connection.settings_dict["NAME"])
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {DATABASE}")
    connection.close()
    connection.settings_dict["NAME"] = DATABASE
    return before


def drop_database(connection: Any, before: str) -> None:
    connection.close()
    connection.settings_dict["NAME"] = before
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
    connection.close()


def describe(db: Any, options: argparse.Namespace) -> None:
    import confluent_kafka

    server = db.execute("SHOW server_version").fetchone()[0]
    print(
        f"{platform.machine()}, {os.cpu_count()} cores shared by worker, PostgreSQL {server} and Kafka; "
        f"Python {platform.python_version()}, psycopg {version('psycopg')}, "
        f"librdkafka {confluent_kafka.libversion()[0]}; load {os.getloadavg()[0]:.1f} at the start"
    )
    print(f"{options.rounds} rounds; {options.keys:,} keys; values of about 100 bytes\n")


def measure(db: Any, servers: str, options: argparse.Namespace) -> None:
    topic = create_topic(servers)
    hot = HOT_RECORDS // (10 if options.quick else 1)
    rows: list[tuple[str, Callable[..., float], int, int]] = [
        ("one by one, many keys", run_baseline, options.records // 10, options.keys),
        ("outbox,     many keys", run_ours, options.records, options.keys),
        ("one by one, hot key", run_baseline, hot, 1),
        ("outbox,     hot key", run_ours, hot, 1),
    ]
    rates: dict[str, list[float]] = {name: [] for name, *_ in rows}
    for _ in range(options.rounds):
        for name, run, records, keys in rows:
            fill(db, topic, records, keys)
            rates[name].append(records / run(db, servers, records))
    medians = [statistics.median(found) for found in rates.values()]
    for (name, found), median in zip(rates.items(), medians, strict=True):
        print(f"{name:24} {median:>9,.0f} records/s   ({min(found):,.0f} to {max(found):,.0f})")
    print(f"\nratio, many keys: {medians[1] / medians[0]:.1f}   ratio, hot key: {medians[3] / medians[2]:.1f}")
    if medians[0] < BASELINE_MIN:
        print(f"The yardstick does not count: it stayed below {BASELINE_MIN:,} records/s.")


def create_topic(servers: str) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin, topic = AdminClient({"bootstrap.servers": servers}), f"benchmark-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, 6, 1)])[topic].result(30)
    return topic


def fill(db: Any, topic: str, records: int, keys: int) -> None:
    db.execute("TRUNCATE outbox")
    db.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) "
        "SELECT %s, 'key-' || n %% %s, repeat('x', 94) || n FROM generate_series(1, %s) AS n",
        [topic, keys, records],
    )
    db.execute("VACUUM ANALYZE outbox")
    db.execute("CHECKPOINT")


def run_ours(db: Any, servers: str, records: int) -> float:
    from outbox import conf
    from outbox.harvest.at_least_once import AtLeastOnce

    begun = time.monotonic()
    worker = AtLeastOnce(conf.current(), 0, uuid.uuid4(), time.monotonic_ns() // 1_000_000_000, TrustingHost())
    worker.start()
    try:
        return wait_for(lambda: worker.statistics().board.purged_total, records, begun)
    finally:
        worker.abandon()
        worker.join(10)


def run_baseline(db: Any, servers: str, records: int) -> float:
    from benchmarks.baseline_one_by_one import OneByOne

    begun = time.monotonic()
    with OneByOne(db.info.dsn + f" password={db.info.password}", servers) as baseline:
        return wait_for(lambda: baseline.purged, records, begun)


def wait_for(count: Callable[[], int], records: int, begun: float) -> float:
    while count() < records:
        if time.monotonic() - begun > TIMEOUT_S:
            sys.exit(f"{count():,} of {records:,} records after {TIMEOUT_S:g} s")
        time.sleep(0.005)
    return time.monotonic() - begun


if __name__ == "__main__":
    main()
