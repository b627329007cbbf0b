"""outbox_stats and outbox_check against a real PostgreSQL and a real Kafka, and against servers that are away."""

import json
import os
import time
import uuid
from contextlib import contextmanager
from io import StringIO
from urllib.parse import urlsplit

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from outbox import conf
from outbox.edges.kafka.common import stable_lag
from outbox.operations import check_kafka
from outbox.operations import stats as operations_stats
from tests.harvest.processes import Harvest
from tests.support.databases import fresh_database
from tests.support.pooler import Pooler
from tests.support.topics import create_topic

INSERT = (
    "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) SELECT %s, 'k', n::text FROM generate_series(1, %s) n"
)


class Shop:
    def __init__(self, url, servers):
        self.url, self.servers, self.name = url, servers, f"shop-{os.getpid()}"
        self.db = psycopg.connect(url, autocommit=True)
        self.topic = create_topic(servers, 1)

    def insert(self, count, topic=None):
        self.db.execute(INSERT, [topic or self.topic, count])

    def wait_count(self, count, timeout_s=60):
        deadline = time.monotonic() + timeout_s
        while self.db.execute("SELECT count(*) FROM outbox").fetchone()[0] != count:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture(scope="module")
def shop(postgres, migrated_template, bootstrap_servers, tmp_path_factory):
    """A migrated database in which a harvester has delivered 30 records and stopped."""
    with fresh_database(os.environ["DATABASE_URL"], migrated_template) as url:
        made = Shop(url, bootstrap_servers)
        harvest = Harvest(tmp_path_factory.mktemp("shop"), url, OUTBOX_NAME=made.name)
        try:
            harvest.leads()
            made.insert(30)
            made.wait_count(0)
            harvest.ends(0)
        finally:
            harvest.discard()
        yield made
        made.db.close()


@pytest.fixture
def at(shop, settings, django_db_blocker):
    """The settings lead to the shop; the alias `default` is opened by the harvester's own connections alone."""
    settings.OUTBOX = {**settings.OUTBOX, "NAME": shop.name, "BOOTSTRAP_SERVERS": shop.servers}

    @contextmanager
    def leading(url):
        parts = psycopg.conninfo.conninfo_to_dict(url)
        wrapper = connections["default"]
        before = dict(wrapper.settings_dict)
        wrapper.settings_dict.update(
            NAME=parts["dbname"], USER=parts["user"], PASSWORD=parts.get("password", ""), HOST=parts["host"],
            PORT=parts["port"],
        )  # fmt: skip
        with django_db_blocker.unblock():
            wrapper.close()
            try:
                yield
            finally:
                wrapper.close()
                wrapper.settings_dict.clear()
                wrapper.settings_dict.update(before)

    with leading(shop.url):
        yield shop


def run(name, *arguments):
    out = StringIO()
    code = 0
    try:
        call_command(name, *arguments, stdout=out)
    except SystemExit as end:
        code = end.code
    return code, out.getvalue()


def stats(*arguments):
    return json.loads(run("outbox_stats", "--json", *arguments)[1])


def check(*arguments):
    code, text = run("outbox_check", "--json", *arguments)
    return code, json.loads(text)


def of(found, subject):
    return [(finding["level"], finding["text"]) for finding in found["findings"] if finding["subject"] == subject]


@pytest.mark.part
def test_stats_tell_what_waits_and_where_lanes_and_ledger_are(at):
    at.insert(7)
    found = stats("--interval", "0.01")
    assert found["backlog"]["records"] == 7
    assert 0 <= found["backlog"]["oldest_age_s"] < 60
    assert found["rates"].keys() == {"stashed_per_s", "delivered_per_s"}
    [lane] = found["lanes"]
    purged = at.db.execute("SELECT max(batch) FROM outbox_purged").fetchone()[0]
    assert (lane["lane"], lane["purged_batch"], lane["ledger_batch"]) == (0, purged, purged)
    assert purged >= 1
    assert found["state"]["lanes"] == 1
    assert found["ledger"] == {"topic": f"{at.name}.ledger", "error": None, "open_offsets": 0}
    assert (found["holds"], found["dead_letters"], found["holds_by_reason"]) == (0, 0, {})
    text = run("outbox_stats")[1]
    assert "\nrates: " in text
    assert stats("--interval", "0", "--no-kafka")["rates"] is None
    assert "backlog: 7 records; the oldest has waited for " in text
    assert f"purged up to batch {purged}, ledger at {purged}" in text
    at.db.execute("DELETE FROM outbox")


def test_a_lane_without_an_owner_may_be_kafkas_fault():
    lane = {"lane": 0, "owner": None, "is_owned": False, "purged_batch": None, "ledger_batch": None}
    assert operations_stats._lane_text(lane) == "lane 0: no owner (no harvester is running, or Kafka is unavailable)"
    last = {**lane, "owner": "host_1", "heartbeat_s": 75.0}
    told = "lane 0: no owner; the last one was host_1, 75 s ago (it has ended, or Kafka is unavailable)"
    assert operations_stats._lane_text(last) == told


def test_the_oldest_record_is_told_among_times_without_a_date(at):
    at.insert(6)
    at.db.execute("ALTER TABLE outbox ALTER create_time DROP NOT NULL")
    try:
        ids = [row[0] for row in at.db.execute("SELECT id FROM outbox ORDER BY id")]
        times = "NULL", "'infinity'", "'-infinity'", "'20000-01-01'", "now() - interval '1 h'"
        for id_, time in zip(ids, times, strict=False):
            at.db.execute(f"UPDATE outbox SET create_time = {time} WHERE id = %s", [id_])
        assert 3600 <= stats("--interval", "0", "--no-kafka")["backlog"]["oldest_age_s"] < 3700
        assert "outbox.W007: The column create_time of 'outbox' accepts NULL." in str(of(check()[1], "checks"))
        at.db.execute("UPDATE outbox SET create_time = '0044-03-15 BC' WHERE id = %s", [ids[0]])
        assert stats("--interval", "0", "--no-kafka")["backlog"]["oldest_age_s"] > 2000 * 365 * 86_400
    finally:
        at.db.execute("DELETE FROM outbox")
        at.db.execute("ALTER TABLE outbox ALTER create_time SET NOT NULL")


def test_stats_of_the_database_alone_ask_no_broker(at, settings):
    settings.OUTBOX = {**settings.OUTBOX, "BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    found = stats("--no-kafka")
    assert found["ledger"] is None
    assert found["lanes"][0]["ledger_batch"] is None


def test_stats_without_a_broker_say_so_and_show_the_rest(at, settings, monkeypatch):
    monkeypatch.setattr(stable_lag, "_REQUEST_S", 1.0)
    settings.OUTBOX = {**settings.OUTBOX, "BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    found = stats()
    assert found["backlog"]["records"] == 0
    assert found["ledger"]["error"]


def test_stats_name_a_missing_table(at, settings):
    settings.OUTBOX = {**settings.OUTBOX, "TABLE": "not_there"}
    with pytest.raises(
        CommandError, match=r"'not_there' does not exist on the alias 'default'\. Run: python manage\.py"
    ):
        run("outbox_stats")


def test_a_sound_configuration_is_found_sound(at):
    at.insert(1)
    code, found = check()
    levels = {finding["level"] for finding in found["findings"]}
    assert (code, found["result"]) in [(0, "ok"), (0, "warning")], found
    assert "error" not in levels
    subjects = [finding["subject"] for finding in found["findings"]]
    assert subjects[-8:] == [
        "table", "rights", "kafka", "leader topic", "ledger topic", "transactions", f"topic {at.topic!r}",
        "ledger and table",
    ]  # fmt: skip
    code, text = run("outbox_check")
    assert text.splitlines()[-1].startswith("result: harvesters can run")
    at.db.execute("DELETE FROM outbox")


def test_a_pooler_and_what_keeps_rows_are_named(at):
    parts = connections["default"].settings_dict
    at.db.execute("CREATE RULE soft AS ON DELETE TO outbox DO INSTEAD NOTHING")
    before = parts["PORT"]
    try:
        with Pooler(at.url) as pooler:
            parts["PORT"] = str(urlsplit(pooler.url).port)
            connections["default"].close()
            _, found = check()
    finally:
        parts["PORT"] = before
        at.db.execute("DROP RULE soft ON outbox")
    (told,) = (text for level, text in of(found, "database") if level == "error")
    assert "does not keep a session for a connection" in told
    (told,) = (text for level, text in of(found, "table") if level == "error")
    assert "the rule 'soft' acts on each DELETE" in told


def test_topics_that_cannot_take_what_waits_are_named(at):
    small = create_topic(at.servers, 1, **{"max.message.bytes": "1000"})
    at.insert(1, "not-there-at-all")
    code, found = check("--topic", small)
    assert (code, found["result"]) == (1, "error")
    [(level, text)] = of(found, "topic 'not-there-at-all'")
    assert (level, text) == ("error", "A harvester cannot use the topic: UNKNOWN_TOPIC_OR_PART.")
    assert of(found, f"topic {small!r}")[0][0] == "warning"
    assert of(found, "ledger and table")[0][0] == "skipped"
    _, again = check()
    assert of(again, "topic 'not-there-at-all'") == [(level, text)], "asking must not create the topic"
    at.db.execute("DELETE FROM outbox")


def test_table_and_ledger_that_disagree_are_an_error(at):
    at.db.execute("UPDATE outbox_purged SET batch = batch + 5")
    at.db.execute("UPDATE outbox_lane SET heartbeat = now() - interval '1 hour'")
    code, found = check()
    [(level, text)] = of(found, "ledger and table")
    assert (code, level) == (1, "error")
    assert "In lane 0 the table is at batch" in text
    at.db.execute("UPDATE outbox_purged SET batch = batch - 5")


def test_a_lane_that_the_database_has_forgotten_is_asked_for_too(at):
    """As after a restore to before its first batch: only the ledger knows of it."""
    purged = at.db.execute("DELETE FROM outbox_purged RETURNING batch").fetchone()[0]
    at.db.execute("DELETE FROM outbox_lane")
    try:
        [lane] = stats()["lanes"]
    finally:
        at.db.execute("INSERT INTO outbox_purged (lane, batch) VALUES (0, %s)", [purged])
    assert (lane["lane"], lane["purged_batch"], lane["ledger_batch"]) == (0, None, purged)


def test_the_ledger_of_another_database_is_an_error(at):
    here, there = uuid.uuid4(), at.db.execute("SELECT database FROM outbox_state").fetchone()[0]
    at.db.execute("UPDATE outbox_state SET database = %s", [here])
    try:
        _, found = check()
    finally:
        at.db.execute("UPDATE outbox_state SET database = %s", [there])
    [(level, text)] = of(found, "ledger and table")
    assert level == "error"
    assert f"The ledger of lane 0 belongs to database {there}, but this is database {here}." in text


@pytest.mark.parametrize("command", ["outbox_check", "outbox_stats"])
def test_an_alias_that_is_not_there_is_named(command):
    with pytest.raises(CommandError, match=r"'typo' is not in DATABASES, which has 'default'"):
        call_command(command, database="typo")


def test_rights_that_are_missing_are_named(at):
    role = f"poor_{os.getpid()}"
    at.db.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'hunter22'")
    at.db.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    wrapper = connections["default"]
    before = dict(wrapper.settings_dict)
    wrapper.settings_dict.update(USER=role, PASSWORD="hunter22")
    wrapper.close()
    try:
        code, found = check()
    finally:
        wrapper.close()
        wrapper.settings_dict.update(before)
        at.db.execute(f"DROP OWNED BY {role}")
        at.db.execute(f"DROP ROLE {role}")
    [(level, text)] = of(found, "rights")
    assert (code, level) == (1, "error")
    assert 'DELETE on "outbox"' in text
    assert 'INSERT, UPDATE, DELETE on "outbox_purged"' in text
    assert "SELECT on " not in text.replace("SELECT on the sequence", "")


def test_servers_that_are_away_are_told_and_no_secret_is(at, settings, monkeypatch):
    monkeypatch.setattr(check_kafka, "_REQUEST_S", 1.0)
    secret = "s3cret-hunter22"
    settings.OUTBOX = {
        **settings.OUTBOX,
        "BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "KAFKA": {"sasl.password": secret, "sasl.username": "bob", "client.id": f"named-after-{secret}"},
    }
    wrapper = connections["default"]
    before = dict(wrapper.settings_dict)
    wrapper.settings_dict.update(PORT="1", PASSWORD=secret)
    wrapper.close()
    try:
        code, text = run("outbox_check", "--json")
        plain = run("outbox_check")[1]
    finally:
        wrapper.settings_dict.update(before)
    found = json.loads(text)
    assert (code, found["result"]) == (1, "error")
    assert [level for level, _ in of(found, "database")] == ["error"]
    assert [level for level, _ in of(found, "kafka")] == ["error"]
    assert of(found, "topics")[0][0] == "skipped"
    assert found["configuration"]["kafka"]["sasl.password"] == "***"
    assert found["configuration"]["kafka"]["sasl.username"] == "bob"
    assert found["configuration"]["kafka"]["client.id"] == "named-after-***"
    assert secret not in text + plain


def test_wrong_settings_are_named(settings):
    settings.OUTBOX = {"LANES": "many"}
    conf.forget()
    for command in ("outbox_check", "outbox_stats"):
        with pytest.raises(CommandError, match="LANES"):
            run(command)
