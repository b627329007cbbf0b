"""What stashing costs beside the bare statements it is made of.

    python -m outbox.devstack run -- python benchmarks/stash.py

`stash()` is compared with an INSERT of the same row through ``connection.cursor()``, `stash_many` with a COPY of the
same rows (headers and message id included) in two forms: rows whose arrays are PostgreSQL literals already, the least a
client can do, and rows as Python tuples and lists, which psycopg turns into text. The variants of a round run one after
the other, so that a slow moment of the machine hits all of them; the median counts, with the spread of the rounds.
Creates a database of its own on the server of DATABASE_URL, and drops it.
"""

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

SINGLES = 1_000
MANY = 100_000
ROUNDS = 5
ROUNDS_MAX_S = 30.0
DATABASE = f"outbox_benchmark_{os.getpid()}"

Row = tuple[str, str, str, list[str], list[str]]


def main() -> None:
    setup_django()
    from django.core.management import call_command
    from django.db import connection

    created = create_database(connection)
    try:
        call_command("migrate", "outbox", verbosity=0, skip_checks=True)
        describe_machine(connection)
        measure_singles(connection)
        measure_many(connection)
    finally:
        drop_database(connection, created)


def setup_django() -> None:
    if "DATABASE_URL" not in os.environ:
        sys.exit("DATABASE_URL is not set. Run: python -m outbox.devstack run -- python benchmarks/stash.py")
    import django
    import environ
    from django.conf import settings

    settings.configure(
        DATABASES={"default": environ.Env().db("DATABASE_URL")},
        INSTALLED_APPS=["outbox"],
        USE_TZ=True,
        OUTBOX={"BINARY_VALUES": True},
    )
    django.setup()


def create_database(connection: Any) -> str:
    origin = str(connection.settings_dict["NAME"])
    with connection.cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{DATABASE}"')
    connection.close()
    connection.settings_dict["NAME"] = DATABASE
    return origin


def drop_database(connection: Any, origin: str) -> None:
    connection.close()
    connection.settings_dict["NAME"] = origin
    with connection.cursor() as cursor:
        cursor.execute(f'DROP DATABASE "{DATABASE}" WITH (FORCE)')


def describe_machine(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        server = cursor.fetchone()[0]
        cursor.execute("SELECT string_agg(name || '=' || setting, ' ') FROM pg_settings WHERE name = ANY(%s)", [SHOWN])
        options = cursor.fetchone()[0]
    print(f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()} {platform.release()}, load {load()}")
    print(f"Python {platform.python_version()}, Django {version('django')}, psycopg {version('psycopg')}")
    print(f"PostgreSQL {server}: {options}")


SHOWN = ["fsync", "full_page_writes", "synchronous_commit", "shared_buffers", "max_wal_size"]


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def measure_singles(connection: Any) -> None:
    print(f"\nOne record per call, {SINGLES:,} calls in a transaction")
    timed = in_rounds(connection, {"raw INSERT": insert_singles, "stash()": stash_singles})
    show(timed, "raw INSERT", SINGLES, "us per record", lambda seconds: seconds / SINGLES * 1e6, slower_is=True)


def insert_singles(connection: Any) -> None:
    sql = (
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values) "
        "VALUES (%s, %s, %s, %s, %s) RETURNING id"
    )
    for at in range(SINGLES):
        names, values = ["source", "message-id"], ["benchmark", str(uuid.uuid4())]
        with connection.cursor() as cursor:
            cursor.execute(sql, ["heroes", f"key-{at % 1000}", VALUE, names, values])
            cursor.fetchone()


def stash_singles(connection: Any) -> None:
    import outbox

    for at in range(SINGLES):
        outbox.stash("heroes", VALUE, key=f"key-{at % 1000}", headers={"source": "benchmark"})


def measure_many(connection: Any) -> None:
    print(f"\n{MANY:,} records per call")
    ids = [str(uuid.uuid4()) for _ in range(MANY)]
    lists: list[Row] = [
        ("heroes", f"key-{at % 1000}", VALUE, ["source", "message-id"], ["benchmark", ids[at]]) for at in range(MANY)
    ]
    literals = [
        ("heroes", f"key-{at % 1000}", VALUE, '{"source","message-id"}', f'{{"benchmark","{ids[at]}"}}')
        for at in range(MANY)
    ]
    variants: dict[str, Callable[[Any], None]] = {
        "raw COPY, literals": lambda connection: copy_rows(connection, literals),
        "raw COPY, lists": lambda connection: copy_rows(connection, lists),
        "stash_many str": stasher(VALUE),
        "stash_many bytes": stasher(VALUE.encode()),
        "stash_many JSON": stasher(OBJECT),
    }
    show(
        in_rounds(connection, variants),
        "raw COPY, literals",
        MANY,
        "records/s",
        lambda seconds: MANY / seconds,
        slower_is=False,
    )


VALUE = '{"event": "hero_created", "name": "Ada", "power": "analysis", "level": 12, "note": "' + "x" * 30 + '"}'
OBJECT = {"event": "hero_created", "name": "Ada", "power": "analysis", "level": 12, "note": "x" * 30}


def copy_rows(connection: Any, rows: list[Any]) -> None:
    sql = "COPY outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values) FROM STDIN"
    with connection.cursor() as cursor, cursor.copy(sql) as copy:
        for row in rows:
            copy.write_row(row)


def stasher(value: Any) -> Callable[[Any], None]:
    import outbox

    messages = [
        outbox.Message("heroes", value, key=f"key-{at % 1000}", headers={"source": "benchmark"}) for at in range(MANY)
    ]

    def stash_all(connection: Any) -> None:
        assert len(outbox.stash_many(messages)) == MANY

    return stash_all


def in_rounds(connection: Any, variants: dict[str, Callable[[Any], None]]) -> dict[str, list[float]]:
    """Seconds of each variant in each round, after one round to warm up; the commit is not counted."""
    from django.db import transaction

    timed: dict[str, list[float]] = {name: [] for name in variants}
    deadline = time.monotonic() + ROUNDS_MAX_S / 2
    for turn in range(ROUNDS + 1):
        for name, run in variants.items():
            with transaction.atomic():
                began = time.perf_counter()
                run(connection)
                took = time.perf_counter() - began
            if turn:
                timed[name].append(took)
            with connection.cursor() as cursor:
                cursor.execute("TRUNCATE outbox")
        if turn >= 2 and time.monotonic() > deadline:
            break
    return timed


def show(
    timed: dict[str, list[float]],
    base: str,
    count: int,
    unit: str,
    figure: Callable[[float], float],
    *,
    slower_is: bool,
) -> None:
    for name, seconds in timed.items():
        middle = statistics.median(seconds)
        # Of each round by itself: what slows the machine down slows both.
        quotients = [own / other if slower_is else other / own for own, other in zip(seconds, timed[base], strict=True)]
        ratio = statistics.median(quotients)
        low, high = sorted((figure(min(seconds)), figure(max(seconds))))
        print(
            f"  {name:<20}{figure(middle):>12,.0f} {unit}  (median of {len(seconds)}, {low:,.0f} to {high:,.0f})"
            f"  {ratio:.2f} of {base} ({min(quotients):.2f} to {max(quotients):.2f})"
        )


if __name__ == "__main__":
    main()
