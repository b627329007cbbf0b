"""The migration on real servers: a new table, and tables that other programs of the layout have filled."""

import os
import sys
import threading
import time
from io import StringIO
from subprocess import CompletedProcess
from unittest.mock import patch

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from outbox.exceptions import OutboxError
from tests.support.databases import django, fresh_database

pytestmark = pytest.mark.slow  # as a file

# What older programs of this layout create.
GOHARVEST_TABLE = """
CREATE TABLE {table} (
    id bigserial PRIMARY KEY,
    create_time timestamptz NOT NULL,
    kafka_topic varchar(249) NOT NULL,
    kafka_key varchar(100) NOT NULL,
    kafka_value varchar(10000),
    kafka_header_keys text[] NOT NULL,
    kafka_header_values text[] NOT NULL,
    leader_id uuid
)
"""
GOHARVEST_INSERT = """
INSERT INTO {table} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT now(), 'goharvest', 'k' || n %% 100, 'value ' || n, '{{}}', '{{}}' FROM generate_series(1, %s) n
"""
WATCHED = """
CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
CREATE TRIGGER watch BEFORE UPDATE OF kafka_key ON outbox FOR EACH ROW EXECUTE FUNCTION f()
"""
UNOWNED = "ALTER TABLE outbox ALTER id DROP DEFAULT; ALTER SEQUENCE outbox_id_seq OWNED BY NONE"
IDENTITY = "ALTER TABLE outbox ALTER id ADD GENERATED ALWAYS AS IDENTITY (START 4 CACHE 20)"


@pytest.fixture(scope="module")
def server_url(request, postgres):
    """The run's server, the newest; or one of a version that a test names."""
    major = getattr(request, "param", "newest")
    return os.environ["DATABASE_URL"] if major == "newest" else request.getfixturevalue("postgres_of")(major)


BETWEEN = [pytest.param(major, marks=pytest.mark.torture) for major in ("15", "16", "17")]
ON_EVERY_VERSION = pytest.mark.parametrize("server_url", ["14", *BETWEEN, "newest"], indirect=True)
UNDER_EVERY_NAME = pytest.mark.parametrize(
    ("table", "server_url"),
    [("outbox", "14"), ("Order Lines", "newest"), ("select", "newest"), ("OUTBOX_2", "14")],
    indirect=["server_url"],
)
ON_THE_OLDEST = pytest.mark.parametrize("server_url", ["14"], indirect=True)


@pytest.fixture
def url(server_url):
    with fresh_database(server_url) as url:
        yield url


@pytest.fixture
def connection(url):
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture(autouse=True)
def commands_reach_the_database(django_db_blocker):
    with django_db_blocker.unblock():
        yield


def run(url, *arguments, table="outbox"):
    """A management command in this process; for another table in one of its own, which gives models its name."""
    if table != "outbox":
        return django(*arguments, url=url, OUTBOX_TABLE=table)
    parts, before = conninfo_to_dict(url), connections["default"]
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    address = {name: parts.get(part, "") for name, part in names.items()}
    # A connection of Django's remembers the version of its server, so each command has a new one.
    connections["default"] = type(before)({**before.settings_dict, **address}, "default")
    checked = {} if arguments[0] == "check" else {"skip_checks": False}
    out = StringIO()
    try:
        with patch.object(sys, "argv", ["manage.py", *arguments]):  # checks look for the command there
            call_command(*arguments, **checked, stdout=out, stderr=out)
    except (CommandError, OutboxError) as error:
        return CompletedProcess(arguments, 1, out.getvalue(), str(error))
    else:
        return CompletedProcess(arguments, 0, out.getvalue(), "")
    finally:
        connections["default"].close()
        connections["default"] = before


def migrate(url, *arguments, table="outbox"):
    return run(url, "migrate", "outbox", *arguments, table=table)


def migrated(url, *arguments, table="outbox"):
    done = migrate(url, *arguments, table=table)
    assert done.returncode == 0, done.stderr
    return done


def goharvest_table(connection, table="outbox", rows=0):
    name = sql.Identifier(table)
    connection.execute(sql.SQL(GOHARVEST_TABLE).format(table=name))
    connection.execute(sql.SQL(GOHARVEST_INSERT).format(table=name), [rows])


def assert_ready(connection, url, table):
    """What every table must be like after the migration, new or adopted."""
    name = sql.Identifier(table)
    row = connection.execute(
        sql.SQL(
            "INSERT INTO {} (kafka_topic, kafka_key, kafka_value) VALUES ('t', 'k', 'v') RETURNING "
            "id, create_time IS NOT NULL, kafka_header_keys, kafka_header_values, leader_id, kafka_value_binary"
        ).format(name)
    ).fetchone()
    assert row[0] >= 1
    assert row[1:] == (True, [], [], None, None)
    default = connection.execute(
        "SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = %s::regclass AND adnum = 1",
        [name.as_string(connection)],
    ).fetchone()[0]
    assert "pg_current_xact_id() IS NOT NULL" in default
    checked = run(url, "check", "--database", "default", "--fail-level", "WARNING", table=table)
    assert checked.returncode == 0, checked.stderr
    for broken in (
        "(kafka_topic, kafka_key, kafka_header_keys) VALUES ('t', 'k', '{a}')",
        "(kafka_topic, kafka_key, kafka_header_keys, kafka_header_values) VALUES ('t', 'k', '{NULL}', '{a}')",
        "(kafka_topic, kafka_key, kafka_header_keys, kafka_header_values) VALUES ('t', 'k', '{a}', '{NULL}')",
        "(kafka_topic, kafka_key, kafka_value, kafka_value_binary) VALUES ('t', 'k', 'v', 'v')",
    ):
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute(sql.SQL("INSERT INTO {} " + broken.replace("{", "{{").replace("}", "}}")).format(name))


@UNDER_EVERY_NAME
def test_a_new_table_has_its_defaults_in_the_database(url, connection, table):
    migrated(url, table=table)
    assert_ready(connection, url, table)
    sequence = connection.execute(
        "SELECT pg_get_serial_sequence(%s, 'id')", [sql.Identifier(table).as_string(connection)]
    ).fetchone()[0]
    assert sequence == "public." + sql.quote(table + "_id_seq").strip("'") or f'"{table}_id_seq"' in sequence


def test_no_migration_is_missing(url):
    done = django("makemigrations", "--check", "--dry-run", url=url, OUTBOX_TABLE="Another Name")
    assert done.returncode == 0, done.stdout + done.stderr


@ON_EVERY_VERSION
def test_the_id_is_drawn_after_the_transaction_has_its_xid(url, connection):
    migrated(url)
    with psycopg.connect(url) as writer:
        writer.execute("SELECT nextval('outbox_id_seq')")  # so that the next value is one that takes no xid by itself
        writer.rollback()
        writer.execute(
            "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1); RETURN NEW; END'"
        )
        writer.execute("CREATE TRIGGER hold BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION hold()")
        writer.commit()
        thread = threading.Thread(
            target=writer.execute, args=["INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('t', 'k')"]
        )
        before = connection.execute("SELECT last_value, is_called FROM outbox_id_seq").fetchone()
        thread.start()
        try:
            deadline = time.monotonic() + 5
            while connection.execute("SELECT last_value, is_called FROM outbox_id_seq").fetchone() == before:
                assert time.monotonic() < deadline
            # The id is drawn and the row sleeps in its trigger: the transaction must be in the snapshot already.
            running = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid = %s",
                [writer.info.backend_pid],
            ).fetchone()[0]
        finally:
            thread.join()
        assert running == 1


@UNDER_EVERY_NAME
def test_a_goharvest_table_is_adopted_with_its_rows(url, connection, table):
    goharvest_table(connection, table, rows=1000)
    migrated(url, table=table)
    name = sql.Identifier(table)
    count, newest = connection.execute(sql.SQL("SELECT count(*), max(id) FROM {}").format(name)).fetchone()
    assert (count, newest) == (1000, 1000)
    assert_ready(connection, url, table)
    assert connection.execute(sql.SQL("SELECT max(id) FROM {}").format(name)).fetchone()[0] > 1000
    connection.execute(
        sql.SQL("INSERT INTO {} (kafka_topic, kafka_key, kafka_value) VALUES ('t', %s, %s)").format(name),
        ["k" * 200, "v" * 20_000],
    )


@ON_EVERY_VERSION
def test_adoption_under_writers_loses_nothing_and_never_blocks_them_for_long(url, connection):
    goharvest_table(connection, rows=50_000)
    stop, written, waits = threading.Event(), [0] * 4, [0.0] * 4

    def write(number):
        with psycopg.connect(url) as writer:
            while not stop.is_set():
                began = time.monotonic()
                writer.execute(
                    "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values) "
                    "VALUES (now(), 't', 'k', '{}', '{}')"
                )
                writer.commit()
                waits[number] = max(waits[number], time.monotonic() - began)
                written[number] += 1

    threads = [threading.Thread(target=write, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        done = django("migrate", "outbox", url=url)  # beside the writers, which are threads of this process
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert done.returncode == 0, done.stderr
    assert connection.execute("SELECT count(*), count(DISTINCT id) FROM outbox").fetchone() == (
        (50_000 + sum(written),) * 2
    )
    assert all(written)
    print(f"longest wait of a writer {max(waits):.3f} s")
    assert_ready(connection, url, "outbox")


def test_adoption_waits_in_short_attempts_for_a_long_transaction(url, connection):
    goharvest_table(connection, rows=10)
    with psycopg.connect(url) as holder:
        holder.execute("INSERT INTO outbox SELECT -1, now(), 't', 'k', 'v', '{}', '{}'")
        thread = threading.Thread(target=lambda: results.append(django("migrate", "outbox", url=url)))
        results = []
        thread.start()
        refused = 0
        deadline = time.monotonic() + 30
        # Another writer gets through between the attempts although the migration wants the table.
        with psycopg.connect(url, autocommit=True) as other:
            while refused < 3 and time.monotonic() < deadline:
                waiting = other.execute(
                    "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted"
                ).fetchone()[0]
                refused += waiting
                other.execute("INSERT INTO outbox SELECT nextval('outbox_id_seq'), now(), 't', 'k', 'v', '{}', '{}'")
        assert thread.is_alive()
        holder.commit()
        thread.join(60)
    assert results[0].returncode == 0, results[0].stderr
    assert_ready(connection, url, "outbox")


@ON_EVERY_VERSION
def test_a_table_with_an_identity_column_keeps_counting_where_it_was(url, connection):
    connection.execute(
        "CREATE TABLE outbox (id bigint GENERATED BY DEFAULT AS IDENTITY (CACHE 20) PRIMARY KEY, "
        "kafka_topic text NOT NULL, kafka_key text NOT NULL, kafka_value text)"
    )
    connection.execute("INSERT INTO outbox (kafka_topic, kafka_key) SELECT 't', 'k' FROM generate_series(1, 30)")
    migrated(url)
    assert_ready(connection, url, "outbox")
    assert connection.execute("SELECT max(id) FROM outbox").fetchone()[0] > 30


@ON_EVERY_VERSION
def test_a_cached_sequence_is_set_right(url, connection):
    goharvest_table(connection)
    connection.execute("ALTER SEQUENCE outbox_id_seq CACHE 50 INCREMENT 2")
    migrated(url)
    assert_ready(connection, url, "outbox")


@ON_THE_OLDEST
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("CREATE VIEW shown AS SELECT kafka_value FROM outbox", "rule _RETURN on view shown depends on column"),
        (
            WATCHED,
            "trigger watch on table outbox depends on column",
        ),
    ],
)
def test_what_prevents_a_change_is_named_and_nothing_is_changed(url, connection, change, told):
    goharvest_table(connection, rows=3)
    connection.execute(change)
    before = described(connection)
    done = migrate(url)
    assert done.returncode != 0
    assert "was left as it is" in done.stderr
    assert told in done.stderr
    assert described(connection) == before


def described(connection):
    return connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull, atthasdef FROM pg_attribute "
        "WHERE attrelid = 'outbox'::regclass AND attnum > 0 ORDER BY attnum"
    ).fetchall()


@ON_THE_OLDEST
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            "ALTER TABLE outbox ALTER kafka_header_keys TYPE varchar(50)[]",
            "kafka_header_keys is character varying(50)[]",
        ),
        ("ALTER TABLE outbox DROP kafka_header_keys, ADD kafka_header_keys jsonb", "kafka_header_keys is jsonb"),
        ("ALTER TABLE outbox ALTER create_time TYPE timestamp", "create_time is timestamp without time zone"),
        ("ALTER TABLE outbox ALTER kafka_key DROP NOT NULL", "kafka_key accepts NULL"),
        ("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey", "id has no primary key and no unique index"),
        ("ALTER TABLE outbox ADD tenant int NOT NULL", "tenant, of your own, is NOT NULL without a default"),
        ("ALTER TABLE outbox SET UNLOGGED", "it is unlogged, so a crash of the server would empty it"),
    ],
)
def test_a_layout_that_would_fail_later_is_refused_now(url, connection, change, told):
    goharvest_table(connection)
    connection.execute(change)
    before = described(connection)
    done = migrate(url)
    assert done.returncode != 0
    assert told in done.stderr
    assert described(connection) == before


@ON_THE_OLDEST
@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE outbox ALTER kafka_topic TYPE varchar(100)",
        "ALTER TABLE outbox ALTER kafka_value SET NOT NULL",
        "UPDATE outbox SET leader_id = gen_random_uuid(); ALTER TABLE outbox ALTER leader_id SET NOT NULL",
        "SELECT setval('outbox_id_seq', 1)",
        "ALTER SEQUENCE outbox_id_seq AS integer",
        "ALTER SEQUENCE outbox_id_seq OWNED BY NONE",
        "ALTER SEQUENCE outbox_id_seq OWNED BY NONE; ALTER SEQUENCE outbox_id_seq RENAME TO numbers",
        UNOWNED,
        f"{UNOWNED}; {IDENTITY}",
        "CREATE SCHEMA s; ALTER TABLE outbox SET SCHEMA s",
        f"{UNOWNED}; DROP SEQUENCE outbox_id_seq; {IDENTITY}; CREATE SCHEMA s; ALTER TABLE outbox SET SCHEMA s",
    ],
)
def test_what_can_be_set_right_is(url, connection, change):
    goharvest_table(connection, rows=3)
    connection.execute(
        "DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, s', current_database()); END$$"
    )
    connection.execute("SET search_path = public, s")
    connection.execute(change)
    migrated(url)
    assert_ready(connection, url, "outbox")
    assert connection.execute("SELECT max(id) FROM outbox").fetchone()[0] == 4
    connection.execute("INSERT INTO outbox (kafka_topic, kafka_key) VALUES (repeat('t', 249), 'k')")


def test_a_table_that_is_no_outbox_is_left_alone(url, connection):
    connection.execute("CREATE TABLE outbox (id integer PRIMARY KEY, kafka_topic text, note text)")
    done = migrate(url)
    assert done.returncode != 0
    assert (
        "id is integer; column kafka_topic accepts NULL; column kafka_key is missing; column kafka_value is missing"
        in done.stderr
    )
    assert 'OUTBOX["TABLE"]' in done.stderr
    assert connection.execute("SELECT count(*) FROM pg_constraint WHERE conname LIKE 'outbox_%one%'").fetchone()[0] == 0


@ON_EVERY_VERSION
def test_records_that_break_a_rule_are_named_and_the_migration_can_be_repeated(url, connection):
    goharvest_table(connection, rows=3)
    connection.execute("UPDATE outbox SET kafka_header_keys = '{a}' WHERE id = 2")
    done = migrate(url)
    assert done.returncode != 0
    assert "break outbox_headers_paired: ids 2. Correct or delete them" in done.stderr
    connection.execute("UPDATE outbox SET kafka_header_values = '{b}' WHERE id = 2")
    migrated(url)
    assert_ready(connection, url, "outbox")


@ON_EVERY_VERSION
def test_backwards_refuses_to_drop_records(url, connection):
    migrated(url)
    connection.execute("INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('t', 'k')")
    done = migrate(url, "zero")
    assert done.returncode != 0
    assert "still holds records" in done.stderr
    connection.execute("DELETE FROM outbox")
    migrated(url, "zero")
    assert connection.execute("SELECT to_regclass('outbox')").fetchone()[0] is None


def test_backwards_refuses_to_drop_holds_and_dead_letters(url, connection):
    migrated(url)
    index = "SELECT to_regclass('outbox_dead_record') IS NOT NULL"
    assert connection.execute(index).fetchone() == (True,)
    connection.execute("INSERT INTO outbox_hold (topic, reason) VALUES ('t', 'paused')")
    connection.execute("INSERT INTO outbox_dead (record_id, topic, key, reason) VALUES (1, 't', 'k', 'rejected')")
    done = migrate(url, "zero")
    assert done.returncode != 0
    assert "has 1 holds" in done.stderr
    assert "1 dead letters" in done.stderr
    assert "outbox_discard --dead-letters --all" in done.stderr
    assert connection.execute("SELECT count(*) FROM outbox_hold, outbox_dead").fetchone() == (1,)
    connection.execute("DELETE FROM outbox_hold; DELETE FROM outbox_dead")
    migrated(url, "zero")
    assert connection.execute("SELECT to_regclass('outbox_hold')").fetchone() == (None,)
    migrated(url)
    assert connection.execute(index).fetchone() == (True,)


def test_backwards_refuses_to_drop_held_messages(url, connection):
    migrated(url)
    connection.execute(
        'INSERT INTO outbox_held (consumer, topic, partition, "offset", reason) VALUES (%s, %s, 0, 1, %s)',
        ["shop.pay", "orders", "failed"],
    )
    done = migrate(url, "zero")
    assert done.returncode != 0
    assert "has 1 held messages and dead letters of consumers" in done.stderr
    assert connection.execute("SELECT count(*) FROM outbox_held").fetchone() == (1,)
    connection.execute("DELETE FROM outbox_held")
    migrated(url, "zero")
    assert connection.execute("SELECT to_regclass('outbox_held')").fetchone() == (None,)


def test_backwards_refuses_to_drop_fragments_of_journals(url, connection):
    migrated(url)
    connection.execute(
        "INSERT INTO outbox_journal (name, chain, stores, fragment_bytes) VALUES ('j', '', '{a}', 1);"
        "INSERT INTO outbox_fragment (journal, append, part, path, length, sha256, blocks, replicas, zones) "
        "VALUES ('j', gen_random_uuid(), 0, 'x', 1, '', '', '{a}', 1)"
    )
    done = migrate(url, "zero")
    assert done.returncode != 0
    assert "has 1 fragments of journals" in done.stderr
    connection.execute("DELETE FROM outbox_fragment")
    migrated(url, "zero")
    assert connection.execute("SELECT to_regclass('outbox_journal'), to_regproc('outbox_f_place')").fetchone() == (
        None,
        None,
    )
    migrated(url)


def test_sqlmigrate_shows_the_new_table(url):
    done = run(url, "sqlmigrate", "outbox", "0001")
    assert done.returncode == 0, done.stderr
    assert "pg_current_xact_id()" in done.stdout


def test_an_unreachable_database_breaks_neither_makemigrations_nor_check():
    nowhere = "postgresql://postgres@127.0.0.1:9/nowhere"
    for command in (["makemigrations", "--check", "--dry-run"], ["check"]):
        done = django(*command, url=nowhere)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr


def test_dropping_the_companions_waits_in_short_attempts(url, connection):
    """A dump holds its lock on the state row for hours; harvesters renew their lease there every few seconds."""
    migrated(url)
    connection.execute("INSERT INTO outbox_state (lanes) VALUES (1)")
    with psycopg.connect(url) as dump:
        dump.execute("LOCK TABLE outbox_state IN ACCESS SHARE MODE")
        results = []
        thread = threading.Thread(target=lambda: results.append(django("migrate", "outbox", "zero", url=url)))
        thread.start()
        refused, longest_s, deadline = 0, 0.0, time.monotonic() + 60
        while refused < 3 and time.monotonic() < deadline:
            refused += connection.execute(
                "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted"
            ).fetchone()[0]
            began = time.monotonic()
            connection.execute("UPDATE outbox_state SET lease_time = clock_timestamp()")
            longest_s = max(longest_s, time.monotonic() - began)
        assert refused >= 3
        assert thread.is_alive()
        dump.rollback()
        thread.join(60)
    print(f"a lease waited {longest_s:.3f} s at most")
    assert results[0].returncode == 0, results[0].stderr
    assert connection.execute("SELECT to_regclass('outbox_state')").fetchone() == (None,)
