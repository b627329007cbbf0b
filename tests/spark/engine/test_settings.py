"""The checks of `harvest --engine spark` before the election, and its job from settings and flags."""

import importlib.util
import json
from pathlib import Path

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from outbox import conf
from outbox.downloads.errors import DevstackError
from outbox.edges.postgres.common.leases import OtherMode
from outbox.spark import java_and_jars
from outbox.spark.engine import settings
from outbox.spark.engine.job import Job
from outbox.spark.engine.settings import Flags


@pytest.fixture
def alias(outbox_table):
    """Django's default alias, connected to the tests' database, with a search path of its own."""
    django = connections["default"]
    before = django.settings_dict
    parts = psycopg.conninfo.conninfo_to_dict(outbox_table.url)
    names = {"HOST": "host", "PORT": "port", "NAME": "dbname", "USER": "user", "PASSWORD": "password"}
    given = {name: parts.get(key, "") for name, key in names.items()}
    django.settings_dict = {**before, **given, "OPTIONS": {"options": "-c search_path=public,pg_catalog"}}
    yield django
    django.settings_dict = before


@pytest.fixture
def settings_of(outbox_table):
    def make(**given):
        raw = {"NAME": "shop", "TABLE": outbox_table.table, "BOOTSTRAP_SERVERS": "kafka:9092", "LANES": 4, **given}
        return settings.settled(conf.parse(raw))

    return make


def refusal(*arguments):
    with pytest.raises(CommandError) as error:
        call_command("harvest", "--engine", "spark", *arguments)
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("module", ["pyspark", "pyarrow", "google.protobuf"])
def test_without_a_package_the_command_names_the_extra(module, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else find(name))
    assert refusal() == (
        f"Spark needs the package {module}, which is not installed. "
        'Run: pip install "django-transactional-outbox[spark]"'
    )


def test_without_java_the_command_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(java_and_jars, "java", java_and_jars.java.__wrapped__)
    monkeypatch.setattr(java_and_jars, "_candidates", list)
    assert refusal().startswith("Spark needs Java 17 to 21 (this machine has none). Set JAVA_HOME to one")


def test_a_connector_that_cannot_be_downloaded_is_reported_before_the_election(monkeypatch):
    def away(version):
        raise DevstackError("The Kafka connector cannot be fetched.")

    monkeypatch.setattr(java_and_jars, "connector", away)
    assert refusal("--connector") == "The Kafka connector cannot be fetched."


def test_wrong_flags_are_refused():
    assert "--spark-conf 'spark.driver.memory' has no value. Write name=value" in refusal(
        "--spark-conf", "spark.driver.memory"
    )
    assert "--slices=0" in refusal("--slices", "0")
    assert "Python cannot import the transformation 'shop.nothing'" in refusal("--transform", "shop.nothing")


def test_a_job_is_what_settings_and_flags_say(alias, outbox_table, settings_of, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    conf_ = settings_of(KEEP_EMPTY_KEY=True, TRANSACTION_TIMEOUT=90, KAFKA={"security.protocol": "SSL"})
    settings.look(conf_, "somebody")
    job = settings.job_of(conf_, Flags(transform="a.b", config=["spark.driver.memory=1g", "spark.jars=x=y"], slices=3))
    database = str(outbox_table.run("SELECT database FROM {state}")[0][0])
    assert (conf_.election.lanes, job.name, job.table, job.slices) == (1, "shop", outbox_table.table, 3)
    assert Path(job.checkpoint) == tmp_path / "outbox" / "spark" / "shop" / database
    assert job.origin == database
    assert job.config == {"spark.driver.memory": "1g", "spark.jars": "x=y"}
    assert (job.id_header, job.keep_empty_key, job.transaction_timeout_s) == ("outbox-id", True, 90)
    assert (job.properties["bootstrap.servers"], job.properties["security.protocol"]) == ("kafka:9092", "SSL")
    assert psycopg.conninfo.conninfo_to_dict(job.url)["options"] == "-c search_path=public,pg_catalog"
    assert settings.job_of(conf_, Flags(sink="other", checkpoint="s3a://b/c")).checkpoint == "s3a://b/c"
    assert Job.decode(job.encode()) == job
    assert json.loads(job.encode())["max_records"] == 50_000


def test_the_options_of_the_url_are_kept(outbox_table):
    from outbox.spark.source import statements

    with statements.connect(f"{outbox_table.url}?options=-c%20search_path%3Dpg_catalog", 5) as connection:
        assert connection.execute("SHOW search_path").fetchone() == ("pg_catalog",)
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)


def test_a_standby_leaves_the_driver_its_lease(alias, outbox_table, settings_of):
    conf_ = settings_of()
    settings.look(conf_, "first")
    outbox_table.run("UPDATE {state} SET lease_time = '2000-01-01'")
    settings.look(conf_, "standby")
    assert outbox_table.run("SELECT lease_mode, lease_owner FROM {state}") == [("spark", "first")]


def test_the_engine_waits_for_another_mode(alias, outbox_table, settings_of):
    outbox_table.run(
        "INSERT INTO {state} (lanes, lease_mode, lease_owner, lease_time) "
        "VALUES (1, 'exactly-once', 'a', clock_timestamp())"
    )
    with pytest.raises(OtherMode, match="This process is for 'spark'"):
        settings.look(settings_of(), "somebody")


def test_a_table_without_its_companion_is_named(alias, outbox_table, settings_of):
    outbox_table.run("DROP TABLE {spark}")
    with pytest.raises(Exception, match=r"has no table '.*_spark'\. Run: .*migrate outbox"):
        settings.look(settings_of(), "somebody")


def test_a_secret_among_the_flags_is_warned_of():
    [note] = settings.notes(settings.Flags(config=["spark.driver.memory=1g", "spark.hadoop.fs.s3a.secret.key=x"]))
    assert note.startswith("--spark-conf holds spark.hadoop.fs.s3a.secret.key: every user of this machine can read it")
    assert "SPARK_CONF_DIR" in note
    assert settings.notes(settings.Flags(config=["spark.driver.memory=1g"])) == []
