"""A database in an encoding with bytes that UTF-8 has no character for: a record with one is told, and can be found."""

import os
import re
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from outbox.conf import AT_LEAST_ONCE, EXACTLY_ONCE
from tests.harvest.exactly_once.bench import Bench
from tests.harvest.processes import Harvest
from tests.support.databases import ROOT


@pytest.fixture
def bench(postgres, bootstrap_servers):
    server, name = os.environ["DATABASE_URL"], f"win1252_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'WIN1252' LOCALE 'C'")
        made = Bench(urlunsplit(urlsplit(server)._replace(path=f"/{name}")), bootstrap_servers)
        yield made
        made.close()
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def insert_bad(bench):
    return bench.db.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) "
        "VALUES (%s, 'bad', convert_from('\\x81', 'WIN1252')) RETURNING id",
        [bench.topic],
    ).fetchone()


@pytest.mark.parametrize("delivery", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_text_without_utf8_is_told_as_what_it_is_and_can_be_found(bench, tmp_path, delivery):
    bench.stash(["clé"])
    bad = insert_bad(bench)
    harvest = Harvest(tmp_path, bench.url, OUTBOX_NAME=bench.name, OUTBOX_DELIVERY=delivery)
    try:
        told = harvest.says('(read|database)_failed .*error=.*0x81 in encoding "WIN1252".*22P05.*not an outage.*table')
        assert told[1] == {EXACTLY_ONCE: "read", AT_LEAST_ONCE: "database"}[delivery]
        [find] = re.findall(r"^SELECT id .*?;$", (ROOT / "docs/table.md").read_text(), re.MULTILINE | re.DOTALL)
        assert bench.db.execute(find).fetchall() == [bad]
        bench.db.execute("DELETE FROM outbox WHERE id = %s", bad)
        bench.wait_empty()
        harvest.ends(0)
        bench.db.execute("ALTER TABLE outbox ADD CHECK (octet_length(convert_to(kafka_value, 'UTF8')) >= 0)")
        with pytest.raises(psycopg.errors.UntranslatableCharacter):
            insert_bad(bench)
        bench.db.execute("INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('t', 'tombstone')")
    finally:
        harvest.discard()
    assert [record.key for record in bench.read()] == ["clé".encode()]
