"""Connections by way of a pooler that hands each transaction to another backend: refused when they are opened, and,
where that could not be seen yet, by every statement that relies on a session."""

import os
import uuid
from contextlib import contextmanager

import psycopg
import pytest

from outbox.edges.postgres.at_least_once.marks import Marks
from outbox.edges.postgres.common import backends, table
from outbox.edges.postgres.common.backends import OptionsIgnored, OtherBackend, SessionShared
from outbox.edges.postgres.exactly_once import companions
from outbox.edges.postgres.exactly_once.companions import Companions
from outbox.edges.postgres.exactly_once.reader import Reader
from outbox.harvest.exactly_once.rounds.database import settle_purge
from outbox.harvest.exactly_once.values import BatchPurge
from tests.harvest.exactly_once.bench import create_tables
from tests.support.databases import fresh_database
from tests.support.pooler import Pooler
from tests.support.tables import insert


@pytest.fixture(scope="module")
def database(postgres):
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            create_tables(connection)
            for setting in ("synchronous_commit = off", "enable_sort = on"):
                connection.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET {setting}")
        yield url


@pytest.fixture
def url(database):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("TRUNCATE outbox, outbox_purged")
    return database


@pytest.fixture(params=[False, True], ids=["last used first", "in turn"])
def pooler(url, request):
    with Pooler(url, rotates=request.param) as pooler:
        yield pooler


@pytest.fixture
def unseen(monkeypatch):
    """The pooler was not recognised when the connection was opened."""
    monkeypatch.setattr(backends, "require_own", lambda *given: None)


@contextmanager
def busy(url):
    """Somebody else has the backend that was used last."""
    with psycopg.connect(url, autocommit=True) as other, other.transaction():
        other.execute("SELECT 1")
        yield


def connected(url, connect=table.connect_session):
    return connect({"conninfo": url}, statement_timeout_s=5, application_name="test")


MODES = [table.connect_session, companions.connect]


@pytest.mark.parametrize("connect", MODES)
def test_a_pooler_that_nobody_else_uses_is_recognised(pooler, connect):
    with pytest.raises(SessionShared, match="Connect to the server directly, or through a pooler in session mode"):
        connected(pooler.url, connect)


@pytest.mark.parametrize("connect", MODES)
def test_a_pooler_that_others_use_is_recognised(pooler, connect):
    with busy(pooler.url), pytest.raises(SessionShared):
        connected(pooler.url, connect)


@pytest.mark.parametrize("connect", MODES)
def test_a_connection_to_the_server_itself_is_accepted_and_leaves_no_lock(url, connect):
    with connected(url, connect) as connection, psycopg.connect(url) as other:
        held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %s"
        assert other.execute(held, [connection.info.backend_pid]).fetchone() == (0,)
        assert backends.of(connection).startswith(f"{connection.info.backend_pid} ")


def test_a_second_connection_that_cannot_be_had_is_done_without(url, monkeypatch):
    """As where the role may not have one more."""
    connect = table.connect_bounded

    def refused(*given, application_name, **options):
        if application_name == table.BESIDE:
            raise psycopg.OperationalError("too many connections for role")
        return connect(*given, application_name=application_name, **options)

    monkeypatch.setattr(table, "connect_bounded", refused)
    connected(url).close()


@pytest.mark.parametrize("name", ["synchronous_commit", "enable_sort", "statement_timeout"])
def test_each_option_that_is_dropped_is_named(url, monkeypatch, name):
    formatted = table.formatted

    def dropping(source, **settings):
        return formatted(source, **{key: value for key, value in settings.items() if key != name})

    monkeypatch.setattr(table, "formatted", dropping)
    with pytest.raises(OptionsIgnored, match=f"\\({name}\\): a pooler drops them"):
        connected(url, companions.connect)


def test_a_read_by_another_backend_is_recognised(pooler, unseen):
    with connected(pooler.url, companions.connect) as connection:
        reader = Reader("outbox", companions.sequence_of(connection, "outbox"))
        backends.require(connection, reader.read(connection, 0, (0,), (), 10).backend)
        with busy(pooler.url):
            page = Reader("outbox", "outbox_id_seq").read(connection, 0, (0,), (), 9)
            with pytest.raises(OtherBackend, match="a pooler gives it another one"):
                backends.require(connection, page.backend)


def test_what_another_backend_flushes_proves_nothing(pooler, unseen):
    with connected(pooler.url, companions.connect) as connection, busy(pooler.url), pytest.raises(OtherBackend):
        Companions("outbox", "outbox_id_seq").flush(connection)


@pytest.mark.parametrize("compared", [False, True])
def test_another_backend_purges_nothing(url, pooler, unseen, compared):
    with psycopg.connect(url, autocommit=True) as db, connected(pooler.url, companions.connect) as connection:
        statements, ids = Companions("outbox", "outbox_id_seq"), insert(db, "t", ["k"] * 5)
        statements.purged(connection, 0)
        filenode = db.execute("SELECT pg_relation_filenode('outbox')").fetchone()[0]
        with busy(pooler.url):
            assert statements.purge(connection, 0, 1, ids, filenode, compared=compared) == 0
            assert statements.purge_counted(connection, 0, 1, ids, filenode) == (False, 0)
            with pytest.raises(OtherBackend):
                settle_purge(statements, connection, BatchPurge(None, filenode))
        assert db.execute("SELECT count(*), (SELECT max(batch) FROM outbox_purged) FROM outbox").fetchone() == (5, 0)


def test_a_transaction_of_another_session_has_no_effect(url, pooler, unseen):
    with psycopg.connect(url, autocommit=True) as db, connected(pooler.url) as connection:
        insert(db, "t", ["k"] * 5)
        with backends.transaction(connection):
            connection.execute("DELETE FROM outbox WHERE id = (SELECT min(id) FROM outbox)")
        with busy(pooler.url), pytest.raises(OtherBackend), backends.transaction(connection):
            connection.execute("DELETE FROM outbox")
        assert db.execute("SELECT count(*) FROM outbox").fetchone() == (4,)


def test_another_backend_than_that_of_the_claim_marks_nothing(url, pooler, unseen):
    with psycopg.connect(url, autocommit=True) as db, connected(pooler.url) as connection:
        marks = Marks("outbox")
        assert marks.take(connection, 1, 5)
        insert(db, "t", ["k"] * 5)
        with busy(pooler.url), pytest.raises(OtherBackend):
            marks.mark(connection, uuid.uuid4(), 10)
        assert db.execute("SELECT count(*) FROM outbox WHERE leader_id IS NOT NULL").fetchone() == (0,)
