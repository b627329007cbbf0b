"""OPTIONS["assume_role"] of Django's alias holds for the connections that this package opens itself."""

import os
import uuid
from contextlib import closing
from functools import partial
from io import StringIO

import psycopg
import pytest
from django.core.management import call_command
from django.db import connections

from outbox.conf import AT_LEAST_ONCE, EXACTLY_ONCE
from outbox.edges.postgres.at_least_once.marks import Marks
from outbox.edges.postgres.common import table
from outbox.harvest import preflight
from outbox.harvest.at_least_once.lane import AtLeastOnceFactory
from outbox.harvest.exactly_once.lane import ExactlyOnceFactory
from outbox.operations import check
from outbox.spark.engine import settings
from outbox.spark.source import statements
from tests.harvest import hosts
from tests.harvest.exactly_once.bench import Bench
from tests.support.databases import fresh_database, leading


@pytest.fixture
def roles(postgres):
    """The owner's name, with a blank in it, and a login that may become the owner and has no other privileges."""
    owner, login = f"the owner {os.getpid()}", f"login_{os.getpid()}"
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as server:
        server.execute(f'CREATE ROLE "{owner}"')
        server.execute(f"CREATE ROLE {login} LOGIN NOINHERIT PASSWORD 'secret' IN ROLE \"{owner}\"")
        yield owner, login
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [login])
        for role in (login, owner):
            server.execute(f'DROP OWNED BY "{role}"')
            server.execute(f'DROP ROLE "{role}"')


@pytest.fixture
def database(roles):
    """Its tables are in the owner's schema, which nobody but the owner finds or may use."""
    owner, _ = roles
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA "{owner}" AUTHORIZATION "{owner}"')
        options = f"-c role={owner}".replace(" ", "\\ ").replace("-c\\ ", "-c ")
        yield psycopg.conninfo.make_conninfo(url, options=options)


@pytest.fixture
def bench(database, bootstrap_servers):
    made = Bench(database, bootstrap_servers)
    yield made
    made.close()


@pytest.fixture
def login(roles, database):
    """The parameters of a connection, without the role."""
    given = {**psycopg.conninfo.conninfo_to_dict(database), "user": roles[1], "password": "secret"}
    del given["options"]
    return given


@pytest.fixture
def alias(roles, login, django_db_blocker, monkeypatch):
    """Django's, as a project sets it."""
    with leading(psycopg.conninfo.make_conninfo(**login), django_db_blocker):
        monkeypatch.setitem(connections["default"].settings_dict["OPTIONS"], "assume_role", roles[0])
        yield "default"


def test_harvesters_of_both_modes_assume_the_role(bench, alias):
    exact, least = ExactlyOnceFactory(), AtLeastOnceFactory()
    for delivery, factory in ((EXACTLY_ONCE, exact), (AT_LEAST_ONCE, least), (AT_LEAST_ONCE, least)):
        preflight.look(bench.conf(DELIVERY=delivery), "owner")
        with bench.working(factory=factory, DELIVERY=delivery) as host:
            bench.stash(["a", "b"] * 20)
            bench.wait_empty()
            assert host.errors == []
            hosts.finish(host)
    bench.check()


def test_commands_assume_the_role(bench, alias, roles):
    found = check.examine(bench.conf(), alias)
    assert f"and user {roles[0]!r}" in str([finding.text for finding in found if finding.subject == "database"])
    assert "The database user has all privileges of a harvester." in [finding.text for finding in found]
    out = StringIO()
    call_command("outbox_roles", reader="r", stdout=out)
    assert "GRANT SELECT" in out.getvalue()


def test_an_owner_ends_the_sessions_of_the_one_before(bench, login, roles):
    """Whether a session may be ended is a question of who has logged in."""
    source = table.assuming(login, roles[0])
    with closing(table.connect_bounded(source, statement_timeout_s=5)) as first:
        assert Marks("outbox").take(first, 1, 5)
        with closing(table.connect_bounded(source, statement_timeout_s=5)) as second:
            assert Marks("outbox").take(second, 2, 5)
            assert second.execute("SELECT current_user").fetchone() == (roles[0],)
        with pytest.raises(psycopg.OperationalError):
            first.execute("SELECT 1")


def test_spark_assumes_the_role(bench, alias, roles):
    bench.db.execute("INSERT INTO outbox_state (id, database, lanes) VALUES (1, %s, 1)", [uuid.uuid4()])
    url = settings.job_of(hosts.settings(NAME=bench.name), settings.Flags()).url
    with closing(statements.connect(url, 5)) as connection:
        assert connection.execute("SELECT current_user").fetchone() == (roles[0],)


def test_a_role_that_is_lost_on_the_way_is_refused(database, login, roles, monkeypatch):
    """As a pooler loses it that drops the options of a connection."""
    source = table.assuming(login, roles[0])
    with monkeypatch.context() as patched:
        for owner in (psycopg.Connection, table.BoundedConnection):
            drop = partial(_without_options, owner.connect)
            patched.setattr(owner, "connect", drop)
        patched.setattr(psycopg, "connect", psycopg.Connection.connect)
        with pytest.raises(table.RoleIgnored, match=r"OPTIONS\['assume_role'\]"):
            table.connect_bounded(source, statement_timeout_s=5)
        with pytest.raises(table.RoleIgnored, match="a pooler drops"):
            table.connect_plainly(source, autocommit=False)


def _without_options(connect, **given):
    return connect(**{**given, "options": ""})
