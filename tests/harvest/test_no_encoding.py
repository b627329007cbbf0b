"""A database without an encoding takes any bytes: a record that is not UTF-8 is refused like any other."""

import os
from io import StringIO
from itertools import product
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.urls import reverse

from outbox.conf import AT_LEAST_ONCE, EXACTLY_ONCE
from outbox.core.holds.values import DeadRecord, HoldActions, HoldRow
from outbox.edges.postgres.exactly_once import companions
from outbox.edges.postgres.holds import HoldTable
from outbox.models import DeadLetter, Hold, OutboxRecord
from outbox.operations import actions
from outbox.operations.actions import OperationRefused, Selector
from tests.harvest.exactly_once.bench import Bench, create_tables, wait_until
from tests.harvest.processes import Harvest
from tests.support.databases import django, leading
from tests.support.tables import insert

BAD = {
    "topic": ("'t' || {bad}", "'k1'", "'x'", "'h'", "'v'", "The topic of the record is not UTF-8: its byte 1 is 0xff"),
    "key": ("%s", "'k' || {bad}", "'x'", "'h'", "'v'", "The key of the record is not UTF-8: its byte 1 is 0xff"),
    "value": (
        "%s",
        "'k3'",
        "convert_from('\\xc3a9', 'SQL_ASCII') || {bad}",
        "'h'",
        "'v'",
        "The value of the record is not UTF-8: its byte 2 is 0xff",
    ),
    "name of a header": (
        "%s",
        "'k4'",
        "'x'",
        "'h' || {bad}",
        "'v'",
        "The name of a header of the record is not UTF-8: its byte 1",
    ),
    "value of a header": (
        "%s",
        "'k5'",
        "'x'",
        "'h'",
        "{bad}",
        "The value of a header of the record is not UTF-8: its byte 0",
    ),
}
BYTE = "convert_from('\\xff', 'SQL_ASCII')"


@pytest.fixture
def url(postgres):
    server = os.environ["DATABASE_URL"]
    name = f"ascii_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    try:
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def bench(url, bootstrap_servers):
    made = Bench(url, bootstrap_servers)
    yield made
    made.close()


def insert_bad(db, good):
    for topic, key, value, name, text, _ in BAD.values():
        given = [part.format(bad=BYTE) for part in (topic, key, value, name, text)]
        db.execute(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values) "
            f"VALUES ({given[0]}, {given[1]}, {given[2]}, ARRAY[{given[3]}], ARRAY[{given[4]}])",
            [good] if "%s" in topic else [],
        )


def held(bench):
    return bench.db.execute(
        "SELECT last_error FROM outbox_hold WHERE reason = 'rejected' ORDER BY record_id"
    ).fetchall()


@pytest.mark.parametrize("delivery", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_what_is_not_utf8_is_held_and_other_keys_go_on(bench, tmp_path, delivery):
    insert_bad(bench.db, bench.topic)
    bench.stash(["ключ", "key"])
    bench.db.execute(  # bytes may be any
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value_binary) VALUES (%s, 'bytes', '\\xff')", [bench.topic]
    )
    bench.db.execute("ALTER TABLE outbox ALTER create_time DROP NOT NULL")
    bench.db.execute("UPDATE outbox SET create_time = NULL WHERE kafka_key = ANY(%s)", [["key", "bytes"]])
    harvest = Harvest(tmp_path, bench.url, OUTBOX_NAME=bench.name, OUTBOX_DELIVERY=delivery)
    try:
        harvest.leads()
        wait_until(lambda: bench.count == len(BAD) and len(held(bench)) == len(BAD), 30)
        for (error,), (*_, expected) in zip(held(bench), BAD.values(), strict=True):
            assert expected in error.decode()
        bench.stash(["key"])
        wait_until(lambda: bench.count == len(BAD), 30)
        bench.db.execute("UPDATE outbox_hold SET wanted = CASE WHEN record_id <= 3 THEN 'skip' ELSE 'discard' END")
        wait_until(lambda: bench.count == 0, 30)
        assert bench.db.execute("SELECT record_id FROM outbox_dead ORDER BY 1").fetchall() == [(1,), (2,), (3,)]
        harvest.ends(0)
    finally:
        harvest.discard()
    found = [(record.key, record.value) for record in bench.read()]
    assert (b"bytes", b"\xff") in found
    assert [value for key, value in found if key == "ключ".encode()] == [b"1"]
    assert len(found) == 4


def test_a_record_whose_error_is_not_ascii_is_set_aside(url):
    with companions.connect({"conninfo": url}, statement_timeout_s=20, application_name="test") as db:
        create_tables(db)
        [id_] = insert(db, "té", ["k"])
        history = ({"code": "TOPIC_EXCEPTION", "error": "topic 'té'"},)
        with db.transaction():
            HoldTable("outbox").run(
                db, 0, HoldActions((DeadRecord(HoldRow(1, "t", "k", record_id=id_, history=history), "skipped"),))
            )
        assert db.execute("SELECT topic, history FROM outbox_dead").fetchall() == [("té", list(history))]


def test_operators_see_edit_and_discard_what_is_not_utf8(url, client, django_db_blocker):
    assert django("migrate", "-v0", url=url).returncode == 0
    with psycopg.connect(url, autocommit=True) as db, leading(url, django_db_blocker):
        insert_bad(db, "t")
        for table, columns, reason in (
            ("hold", "topic, key, record_id, reason", "kafka_topic, kafka_key, id, 'rejected'"),
            ("dead", "record_id, topic, key, value, header_keys, header_values, reason",
             "id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, 'rejected'"),
        ):  # fmt: skip
            db.execute(f"INSERT INTO outbox_{table} ({columns}) SELECT {reason} FROM outbox")
        client.force_login(User.objects.create_superuser("ann"))
        for model, pages in (("outboxrecord", ["change"]), ("hold", ["change", "edit"]), ("deadletter", ["change"])):
            shown = client.get(reverse(f"admin:outbox_{model}_changelist"))
            assert shown.status_code == 200
            assert b"xff" in shown.content
            for pk, page in product(range(1, len(BAD) + 1), pages):
                found = client.get(reverse(f"admin:outbox_{model}_{page}", args=[pk]))
                assert found.status_code == 200, (model, pk, page)
                assert b"xff" in found.content
        assert client.get(reverse("admin:outbox_sample_changelist")).status_code == 200
        letter = DeadLetter.objects.get(record_id=3)
        with pytest.raises(OperationRefused, match=r"not UTF-8: value\. Change these too"):
            actions.edit_dead(letter.pk, {"key": "other"}, actor="ann")
        assert actions.edit_dead(letter.pk, {"value": "mended"}, actor="ann").changed == 1
        assert OutboxRecord.objects.get(kafka_value="mended").kafka_header_keys == ["h"]
        assert actions.pause_keys([2], actor="ann").changed == 1
        assert actions.pause(topic="t", key="ключ", actor="ann").changed == 1
        assert actions.resume(Selector(all=True), "ann").changed == 2
        assert actions.requeue(Selector(ids=[2]), "ann").changed == 1
        for options in ((), ("--dead-letters",)):
            call_command("outbox_discard", "--all", *options, stdout=StringIO())
        assert DeadLetter.objects.count() == 0
        assert set(Hold.objects.filter(key__isnull=False).values_list("wanted", flat=True)) == {"discard"}
    shown = django("outbox_stats", url=url)
    assert shown.returncode == 0, shown.stderr


def test_spark_names_the_record(url):
    pytest.importorskip("pyspark")
    from outbox.spark.source.arrow import Range, RecordNotText, read
    from outbox.spark.source.options import Options

    with psycopg.connect(url, autocommit=True) as db:
        create_tables(db)
        insert_bad(db, "t")
        insert(db, "t", ["k"] * 3)
    for record, part in enumerate(BAD, 1):
        with pytest.raises(RecordNotText, match=f"Record {record}: The {part} of the record is not UTF-8"):
            list(read(Options(url), Range(record, record + 3)))
    (page,) = read(Options(url), Range(len(BAD) + 1, len(BAD) + 3))
    assert page.column("key").to_pylist() == ["k"] * 3
