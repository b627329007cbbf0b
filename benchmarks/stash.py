"""Rows about stashing, compared with the bare statements.

`stash()` is compared with an INSERT of the same row through ``connection.cursor()``, `stash_many` with a COPY of the
same rows (headers and message id included) in two forms: rows whose arrays are PostgreSQL literals already, the least
work for a client, and rows as Python tuples and lists, which psycopg turns into text. The variants of a turn run one
after the other, so that a slow moment of the machine affects all of them. All run in this process, on a connection of
Django's.
"""

import os
import statistics
import time
import uuid
from collections.abc import Callable
from typing import Any

from benchmarks.drains import Drains
from benchmarks.report import Table

SINGLES = 1_000
MANY = 100_000
TURNS = 3
TURNS_MAX_S = 10.0
DATABASE = f"outbox_benchmark_{os.getpid()}"

Record = tuple[str, str, str, list[str], list[str]]


def rows(drains: Drains, *, brief: bool = False) -> None:
    setup_django()
    from django.core.management import call_command
    from django.db import connection

    created = create_database(connection)
    try:
        call_command("migrate", "outbox", verbosity=0, skip_checks=True)
        measure_singles(connection, drains.table)
        if not brief:
            measure_many(connection, drains.table)
    finally:
        drop_database(connection, created)


def setup_django() -> None:
    import django
    import environ
    from django.conf import settings

    if not settings.configured:
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


def measure_singles(connection: Any, table: Table) -> None:
    timed = in_turns(connection, {"raw INSERT": insert_singles, "stash()": stash_singles})
    for name, seconds in timed.items():
        row = table.row(f"{name}, one record per call", "us per record", shape="{:.0f}".format)
        row.add(statistics.median(seconds) / SINGLES * 1e6)
    _show_ratio(table, "  ratio of stash() to a raw INSERT", timed["stash()"], timed["raw INSERT"])


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


def measure_many(connection: Any, table: Table) -> None:
    ids = [str(uuid.uuid4()) for _ in range(MANY)]
    lists: list[Record] = [
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
    timed = in_turns(connection, variants)
    for name, seconds in timed.items():
        table.row(f"{name}, {MANY:,} records", "records/s").add(MANY / statistics.median(seconds))
    _show_ratio(
        table,
        "  ratio of stash_many str to a raw COPY of literals",
        timed["raw COPY, literals"],
        timed["stash_many str"],
    )


def _show_ratio(table: Table, name: str, upper: list[float], lower: list[float]) -> None:
    # Within each turn: a slow machine slows both.
    found = statistics.median(own / other for own, other in zip(upper, lower, strict=True))
    table.row(name, shape="{:.2f}".format).add(found)


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


def in_turns(connection: Any, variants: dict[str, Callable[[Any], None]]) -> dict[str, list[float]]:
    """Seconds of each variant in each turn, after one to warm up; the commit does not count."""
    from django.db import transaction

    timed: dict[str, list[float]] = {name: [] for name in variants}
    deadline = time.monotonic() + TURNS_MAX_S
    for turn in range(TURNS + 1):
        for name, run in variants.items():
            with transaction.atomic():
                began = time.perf_counter()
                run(connection)
                took = time.perf_counter() - began
            if turn:
                timed[name].append(took)
            with connection.cursor() as cursor:
                cursor.execute("TRUNCATE outbox")
        if turn and time.monotonic() > deadline:
            break
    return timed
