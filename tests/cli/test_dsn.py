"""A data source leads to the same server as with Go's driver, and an empty password is empty."""

import getpass

import psycopg
import pytest
from django.db import connection
from django.db.backends.postgresql.base import DatabaseWrapper

from outbox.cli.dsn import BadDataSource, django_database, parse


def entry(text, schema="", **environ):
    return django_database(text, environ, schema)


def test_the_default_of_goharvest_files_has_no_password_and_keeps_its_database():
    found = entry("host=localhost port=5432 user=postgres password= dbname=shop sslmode=disable")
    assert (found["PASSWORD"], found["NAME"]) == ("", "shop")
    assert found["OPTIONS"] == {"sslmode": "disable"}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=1 b=2", {"a": "1", "b": "2"}),
        ("  a = 1\n\tb= 2  ", {"a": "1", "b": "2"}),
        ("password=", {"password": ""}),
        ("password= ", {"password": ""}),
        ("password= user=x", {"password": "", "user": "x"}),
        ("password=  user = x", {"password": "", "user": "x"}),
        ("password='' user=x", {"password": "", "user": "x"}),
        ("password='a b=c' user=x", {"password": "a b=c", "user": "x"}),
        (r"password='it\'s \\' user=x", {"password": r"it's \ ".rstrip(), "user": "x"}),
        (r"password=a\ b user=x", {"password": "a b", "user": "x"}),
        ("password=a=b user=x", {"password": "a=b", "user": "x"}),
        ("password= se=cret", {"password": "", "se": "cret"}),
        ("", {}),
        ("postgres://u:p%40ss@db:6000/shop?sslmode=disable&search_path=a",
         {"user": "u", "password": "p@ss", "host": "db", "port": "6000", "dbname": "shop", "sslmode": "disable",
          "search_path": "a"}),
        ("postgresql://db", {"host": "db"}),
        ("postgres://u:@db/shop", {"user": "u", "host": "db", "dbname": "shop"}),
        ("postgres://[::1]:5433/shop", {"host": "::1", "port": "5433", "dbname": "shop"}),
        ("postgres:///shop?host=/run/pg", {"dbname": "shop", "host": "/run/pg"}),
    ],
)  # fmt: skip
def test_reads_both_forms(text, values):
    assert parse(text) == values


def test_defaults_are_those_of_the_go_driver():
    found = entry("user=app")
    assert {name: found[name] for name in ("HOST", "PORT", "USER", "NAME", "PASSWORD")} == {
        "HOST": "localhost",
        "PORT": "5432",
        "USER": "app",
        "NAME": "app",
        "PASSWORD": "",
    }
    assert found["OPTIONS"]["sslmode"] == "require"
    assert entry("")["USER"] == getpass.getuser()


def test_the_environment_of_postgresql_fills_what_is_absent():
    found = entry("dbname=shop", PGHOST="db", PGUSER="app", PGPASSWORD="x", PGSSLMODE="disable", PGDATABASE="other")
    assert (found["HOST"], found["USER"], found["PASSWORD"], found["NAME"]) == ("db", "app", "x", "shop")
    assert found["OPTIONS"]["sslmode"] == "disable"


def test_run_time_parameters_go_to_the_server_and_driver_instructions_do_not():
    found = entry("user=a statement_timeout=5s TimeZone='Europe/Paris x' binary_parameters=yes connect_timeout=3")
    assert found["OPTIONS"] == {
        "sslmode": "require",
        "connect_timeout": "3",
        "options": r"-c statement_timeout=5s -c TimeZone=Europe/Paris\ x",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("host", 'has no "=" after a key at character 1'),
        ("host=a s3cr3t-word", 'has no "=" after a key at character 7'),
        ("password='s3cr3t", "unterminated quoted value"),
        ("password=s3cr3t\\", "ends in a backslash"),
        ("postgres://u:s3cr3t@db:port/x", "not a valid URL"),
        ("user=u sslmode=prefer", "Set one of: disable, require, verify-ca, verify-full"),
        ("user=u port=x", "has port="),
        ("user=u connect_timeout=1s", "Set whole seconds"),
    ],
)
def test_refuses_without_repeating_what_may_be_secret(text, message):
    with pytest.raises(BadDataSource, match=message) as refused:
        entry(text)
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.django_db
def test_tables_are_searched_in_the_schema_whatever_its_name():
    ours = connection.settings_dict
    source = "host={HOST} port={PORT} user={USER} password='{PASSWORD}' dbname={NAME} sslmode=disable".format(**ours)
    found = entry(f"{source} statement_timeout=7s", schema='odd "schema')
    defaults = {"ATOMIC_REQUESTS": False, "AUTOCOMMIT": True, "CONN_MAX_AGE": 0, "TIME_ZONE": None, "TEST": {}}
    parameters = DatabaseWrapper({**defaults, **found}).get_connection_params()
    for name in ("context", "cursor_factory", "prepare_threshold"):
        parameters.pop(name, None)
    with psycopg.connect(**parameters) as raw:
        assert raw.execute("SHOW search_path").fetchone() == ('"odd ""schema"',)
        assert raw.execute("SHOW statement_timeout").fetchone() == ("7s",)
