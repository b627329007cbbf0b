"""A database without an encoding takes any bytes: a record that is not UTF-8 is refused like any other."""

import os
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from outbox.conf import AT_LEAST_ONCE, EXACTLY_ONCE
from tests.harvest.exactly_once.bench import Bench, wait_until
from tests.harvest.processes import Harvest

BAD = {
    "topic": ("'t' || {bad}", "'k1'", "'x'", "'h'", "'v'", "topic is not UTF-8: its byte 1 is 0xff"),
    "key": ("%s", "'k' || {bad}", "'x'", "'h'", "'v'", "key is not UTF-8: its byte 1 is 0xff"),
    "value": (
        "%s",
        "'k3'",
        "convert_from('\\xc3a9', 'SQL_ASCII') || {bad}",
        "'h'",
        "'v'",
        "value is not UTF-8: its byte 2 is 0xff",
    ),
    "name of a header": ("%s", "'k4'", "'x'", "'h' || {bad}", "'v'", "name of a header is not UTF-8: its byte 1"),
    "value of a header": ("%s", "'k5'", "'x'", "'h'", "{bad}", "value of a header is not UTF-8: its byte 0"),
}
BYTE = "convert_from('\\xff', 'SQL_ASCII')"


@pytest.fixture
def bench(postgres, bootstrap_servers):
    server = os.environ["DATABASE_URL"]
    name = f"ascii_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    made = Bench(urlunsplit(urlsplit(server)._replace(path=f"/{name}")), bootstrap_servers)
    try:
        yield made
    finally:
        made.close()
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def insert_bad(bench):
    for topic, key, value, name, text, _ in BAD.values():
        given = [part.format(bad=BYTE) for part in (topic, key, value, name, text)]
        bench.db.execute(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values) "
            f"VALUES ({given[0]}, {given[1]}, {given[2]}, ARRAY[{given[3]}], ARRAY[{given[4]}])",
            [bench.topic] if "%s" in topic else [],
        )


def held(bench):
    return bench.db.execute("SELECT last_error FROM outbox_hold WHERE reason = 'parked' ORDER BY record_id").fetchall()


@pytest.mark.parametrize("delivery", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_what_is_not_utf8_is_held_and_other_keys_go_on(bench, tmp_path, delivery):
    insert_bad(bench)
    bench.stash(["ключ", "key"])
    bench.db.execute(  # bytes may be any
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value_binary) VALUES (%s, 'bytes', '\\xff')", [bench.topic]
    )
    harvest = Harvest(tmp_path, bench.url, OUTBOX_NAME=bench.name, OUTBOX_DELIVERY=delivery)
    try:
        harvest.leads()
        wait_until(lambda: bench.count == len(BAD) and len(held(bench)) == len(BAD), 30)
        bench.stash(["key"])
        wait_until(lambda: bench.count == len(BAD), 30)
        harvest.ends(0)
    finally:
        harvest.discard()
    for (error,), (*_, expected) in zip(held(bench), BAD.values(), strict=True):
        assert expected in error.decode()
    found = [(record.key, record.value) for record in bench.read()]
    assert (b"bytes", b"\xff") in found
    assert [value for key, value in found if key == "ключ".encode()] == [b"1"]
    assert len(found) == 4
    assert harvest.log.count("database_away") == 0
