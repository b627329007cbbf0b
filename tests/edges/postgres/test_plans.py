"""A statement of every round that would read the whole table is refused at the start."""

import os

import psycopg
import pytest
from psycopg import sql

from outbox.edges.postgres.common import int8_arrays, table
from outbox.edges.postgres.exactly_once import companions
from outbox.edges.postgres.exactly_once.companions import Companions
from outbox.edges.postgres.exactly_once.reader import Reader
from outbox.edges.postgres.preflight import plans
from tests.harvest.exactly_once.bench import create_tables
from tests.support.databases import fresh_database


@pytest.fixture
def db(postgres):
    with (
        fresh_database(os.environ["DATABASE_URL"]) as url,
        companions.connect({"conninfo": url}, statement_timeout_s=10, application_name="test") as connection,
    ):
        connection.url = url
        create_tables(connection)
        yield connection


def examples(lanes):
    sequence = "public.outbox_id_seq"
    return [*Reader("outbox", sequence, lanes).examples(), *Companions("outbox", sequence).examples()]


def check(connection, lanes=1):
    plans.check(connection, "outbox", examples(lanes))


@pytest.mark.parametrize("rows", [0, 20_000])
@pytest.mark.parametrize("lanes", [1, 3])
def test_every_statement_goes_by_the_index_whatever_the_statistics_say(db, rows, lanes):
    db.execute("ANALYZE outbox")
    db.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) SELECT 't', 'k', n FROM generate_series(1, %s) n",
        [rows],
    )
    assert {example.name for example in examples(lanes)} == {"read", "purge", "look up"}
    check(db, lanes)
    db.execute("ANALYZE outbox")
    check(db, lanes)


@pytest.mark.parametrize(
    "breaks",
    [
        "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey",
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox_pkey'::regclass",
    ],
)
def test_a_table_without_a_usable_index_is_refused_and_goes_on_with_one(db, breaks):
    db.execute(sql.SQL(breaks))
    with pytest.raises(plans.WholeTableRead, match="ADD PRIMARY KEY") as refused:
        check(db)
    assert "/* read */" in str(refused.value)
    db.execute("CREATE UNIQUE INDEX another ON outbox (id)")
    check(db)


def test_the_settings_of_our_connections_are_what_keeps_the_plans(db):
    """Without them a table with the statistics of an empty one is read whole."""
    db.execute("ANALYZE outbox")
    with psycopg.connect(db.url, autocommit=True) as plain:
        int8_arrays.register(plain)
        with pytest.raises(plans.WholeTableRead):
            check(plain)
    with table.connect_bounded({"conninfo": db.url}, statement_timeout_s=10) as ours:
        int8_arrays.register(ours)
        check(ours)
