"""Roles with the fewest rights: each can do its work, tried as that role, and nothing else."""

import os
from contextlib import contextmanager, nullcontext
from io import StringIO
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.db.utils import ProgrammingError

import outbox
from outbox import journal
from outbox.core.consumers.shown import ShownPartition
from outbox.core.consumers.values import Partition, Position
from outbox.edges.postgres.consumers.positions import Positions
from outbox.edges.postgres.consumers.shown import PartitionRows
from outbox.edges.postgres.journal.keeper import KeeperTable
from outbox.edges.postgres.operations import messages
from outbox.journal.keeper import Keeper
from outbox.journal.stores import stores, zones
from outbox.models import ConsumerHold, DeadLetter, Hold
from outbox.operations import actions, held
from outbox.operations.actions import Selector
from outbox.schema import roles
from tests.harvest import hosts
from tests.harvest.exactly_once.conftest import bench  # noqa: F401

PURPOSES = tuple(roles.HELP)
SHOWN = ShownPartition(Partition("t", 0), "reading", "", 5, 0, 0.0, 0, None)


def names():
    return {purpose: f"out{purpose}_{os.getpid()}" for purpose in PURPOSES}


def as_role(role, statement, *arguments):
    """Run one statement as the role, within the test's transaction."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f'SET LOCAL ROLE "{role}"')
        cursor.execute(statement, arguments)
        found = cursor.fetchall() if cursor.description else None
        cursor.execute("RESET ROLE")
    return found


@pytest.fixture
def made(db):
    """The roles, in the database of the tests, until the test is rolled back."""
    given, out = names(), StringIO()
    call_command("outbox_roles", stdout=out, **given)
    with connection.cursor() as cursor:
        cursor.execute(out.getvalue())
        cursor.execute(out.getvalue())  # twice is as good as once
    return given


@contextmanager
def being(role):
    with connection.cursor() as cursor:
        cursor.execute(f'SET LOCAL ROLE "{role}"')
    yield
    with connection.cursor() as cursor:
        cursor.execute("RESET ROLE")


def test_a_writer_stashes_in_every_way(made):
    many = [outbox.Message("t", "v", key=str(number)) for number in range(400)]
    with being(made["writer"]):
        outbox.stash("t", {"a": 1}, key="k")
        outbox.stash("t", "v", key="k", ordered=True)
        assert len(outbox.stash_many(many[:2])) == 2
        assert len(outbox.stash_many(many)) == 400  # by COPY
        assert len(outbox.stash_many(many, ordered=True)) == 400


FORBIDDEN = {
    "writer": [
        "SELECT kafka_value FROM outbox",
        "SELECT kafka_key FROM outbox",
        "UPDATE outbox SET kafka_value = ''",
        "UPDATE outbox SET leader_id = NULL",
        "DELETE FROM outbox",
        "TRUNCATE outbox",
        "SELECT * FROM outbox_state",
        "INSERT INTO outbox_purged (lane, batch) VALUES (7, 7)",
        "SELECT setval('outbox_id_seq', 1)",
    ],
    "consumer": [
        "SELECT kafka_value FROM outbox",
        "DELETE FROM outbox",
        "SELECT * FROM outbox_state",
        "DELETE FROM outbox_purged",
        "TRUNCATE outbox_position",
        "TRUNCATE outbox_partition",
    ],
    "harvester": [
        "SELECT * FROM outbox_position",
        "SELECT * FROM outbox_partition",
        "INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('t', '')",
        "UPDATE outbox SET kafka_value = ''",
        "UPDATE outbox SET kafka_topic = ''",
        "TRUNCATE outbox",
        "DROP TABLE outbox_lane",
        "SELECT setval('outbox_id_seq', 1)",
        "SELECT nextval('outbox_id_seq')",
    ],
    "operator": [
        "DELETE FROM outbox",
        "TRUNCATE outbox",
        "UPDATE outbox_purged SET batch = 0",
        "DELETE FROM outbox_watch",
        "DELETE FROM outbox_partition",
        "DELETE FROM outbox_held",
        "UPDATE outbox_held SET died_at = NULL",
        "UPDATE outbox_held SET key = NULL",
        "SELECT setval('outbox_id_seq', 1)",
    ],
    "keeper": [
        "SELECT kafka_value FROM outbox",
        "INSERT INTO outbox_journal (name, chain, stores, fragment_bytes) VALUES ('j', '', '{}', 1)",
        "INSERT INTO outbox_fragment (journal) VALUES ('j')",
        "DELETE FROM outbox_journal",
    ],
    "reader": [
        "INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('t', '')",
        "UPDATE outbox SET leader_id = NULL",
        "DELETE FROM outbox",
        "DELETE FROM outbox_purged",
        "UPDATE outbox_state SET lanes = 2",
        "UPDATE outbox_held SET wanted = 'retry'",
        "SELECT nextval('outbox_id_seq')",
    ],
}


@pytest.mark.parametrize("purpose", PURPOSES)
def test_nobody_can_do_more(made, purpose):
    for statement in FORBIDDEN[purpose]:
        with pytest.raises(ProgrammingError, match=r"permission denied|must be owner"):
            as_role(made[purpose], statement)


def test_a_reader_sees_what_the_admin_and_the_metrics_show(made):
    outbox.stash("t", "v", key="k")
    assert as_role(made["reader"], "SELECT kafka_key, kafka_value FROM outbox") == [("k", "v")]
    for suffix in roles.COMPANIONS:
        as_role(made["reader"], f"SELECT * FROM outbox_{suffix}")
    as_role(made["reader"], "SELECT last_value FROM outbox_id_seq")


def test_a_consumer_keeps_its_positions_and_stashes(made):
    positions, one = Positions("outbox", session_timeout_s=6), Partition("t", 0)
    with being(made["consumer"]):
        positions.create(connection, "shop.record", {one: Position(5)})
        _, transaction_id = positions.lock(connection, "shop.record", [one])
        assert positions.write(connection, "shop.record", {one: (5, Position(6))}) == (1, transaction_id)
        assert positions.load(connection, "shop.record", [one]) == {one: Position(6)}
        outbox.stash("receipts", "v", key="k")
        with connection.cursor() as cursor:
            cursor.execute(*PartitionRows("default", "outbox", owner="me", life="me").statement("shop.record", [SHOWN]))
            assert messages.counts(cursor, "outbox", ["shop.record"])["shop.record"] == (0, 0, 0)


@pytest.mark.parametrize("purpose", ["writer", "consumer"])
def test_a_writer_appends_and_a_keeper_keeps(made, purpose, settings, tmp_path, monkeypatch):
    monkeypatch.setattr(
        journal.api, "_outside", lambda alias: nullcontext(connection)
    )  # the role is in this transaction
    settings.OUTBOX = settings.OUTBOX | {"STORES": {"a": {"path": str(tmp_path)}}}
    journal.create("roles", retention_s=60)
    with being(made[purpose]):
        staged, left = journal.stage("roles", b"abc"), journal.stage("roles", b"left")
        staged.commit()
        assert journal.show("roles").head == 0
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    with being(made[purpose]):
        assert b"".join(journal.read("roles")) == b"abc"
        with pytest.raises(ProgrammingError, match="permission denied"), transaction.atomic():
            journal.change("roles", read_only=True)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE outbox_stage SET used_at = '-infinity'")
        cursor.execute("UPDATE outbox_fragment SET placed_at = '-infinity', scrubbed_at = '-infinity'")
    with being(made["keeper"]):
        table = KeeperTable(connection, "outbox")
        keeper = Keeper(table, stores(), zones(), stage_age_s=1, scrub_age_s=1)
        assert keeper.round() == {"pruned": 1, "swept": 2}
        table.suspect("roles", "it is")
    assert left.offsets() is None
    assert journal.show("roles").suspect == "it is"


def test_the_trigger_of_journals_uses_no_table_of_its_caller(made, settings, tmp_path, monkeypatch):
    """It has the rights of the owner."""
    monkeypatch.setattr(journal.api, "_outside", lambda alias: nullcontext(connection))
    settings.OUTBOX = settings.OUTBOX | {"STORES": {"a": {"path": str(tmp_path)}}}
    journal.create("roles")
    staged = journal.stage("roles", b"abc")
    with being(made["writer"]):
        with connection.cursor() as cursor:
            cursor.execute("CREATE TEMP TABLE outbox_journal (LIKE public.outbox_journal) ON COMMIT DROP")
        staged.commit()
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    with connection.cursor() as cursor:
        cursor.execute("SELECT head FROM public.outbox_journal WHERE name = 'roles'")
        assert cursor.fetchone() == (3,)


def test_an_operator_runs_every_operation(made):
    hold = {"topic": "t", "key": "k", "reason": "rejected"}
    first, second, third = ids = [3_000_000_000 + number for number in range(3)]  # no record has them
    with being(made["operator"]):
        for id_ in ids:
            Hold.objects.create(**{**hold, "key": f"k{id_}"}, record_id=id_)
            DeadLetter.objects.create(record_id=id_, topic="t", key="k", reason="rejected")
        assert actions.pause(topic="t", actor="ann").changed == 1
        assert actions.resume(Selector(topic="t"), "ann").changed == 1
        assert actions.skip(Selector(ids=[first]), "ann").pending == 1
        assert actions.requeue(Selector(ids=[second], lane=0), "ann").changed == 1
        assert actions.edit(record_id=third, changes={"value": "v"}, actor="ann").changed == 1
        assert actions.retry(Selector(ids=[second]), "ann").pending == 1
        assert actions.discard(Selector(ids=[third]), "ann").pending == 1
        assert actions.discard_dead_letters(Selector(all=True), "ann").changed == 1


def test_an_operator_requests_what_becomes_of_held_messages(made):
    held_one = {"consumer": "shop.pay", "topic": "orders", "partition": 0, "reason": "failed"}
    first, second = (ConsumerHold.objects.create(**held_one, offset=offset) for offset in (1, 2))
    everything = held.MessageSelector("shop.pay", all=True)
    with being(made["operator"]):
        assert held.alias_of_consumer("shop.pay", {}, None) == "default"
        assert [one.offset for one in held.listed(everything)] == [1, 2]
        for operation in (held.retry, held.skip, held.discard):
            assert operation(everything, "ann").pending == 2
        assert held.edit(first.pk, {"value": "v", "headers": [("a", "b")]}, actor="ann").changed == 1
    assert ConsumerHold.objects.get(pk=second.pk).wanted == "discard"


def test_rights_given_by_hand_are_taken_back(made):
    with connection.cursor() as cursor:
        cursor.execute(f"GRANT ALL ON outbox, outbox_purged TO {made['writer']}")
    as_role(made["writer"], "SELECT kafka_value FROM outbox")
    out = StringIO()
    call_command("outbox_roles", stdout=out, writer=made["writer"])
    assert made["reader"] not in out.getvalue()
    with connection.cursor() as cursor:
        cursor.execute(out.getvalue())
    with pytest.raises(ProgrammingError, match="permission denied"):
        as_role(made["writer"], "SELECT kafka_value FROM outbox")


def test_every_identifier_is_quoted():
    evil = 'a"; DROP TABLE x; --'
    found = roles.Relations(evil, evil, '"s"."q"', (evil,))
    for _, statement in roles.statements(found, dict.fromkeys(PURPOSES, evil)):
        text = statement.as_string().replace('"a""; DROP TABLE x; --"', "").replace("'a\"; DROP TABLE x; --'", "")
        assert "DROP" not in text, text
    found = roles.Relations("public", "outbox", "public.outbox_id_seq", ())
    _, create = roles.statements(found, {"reader": "a$role$b"})[0]
    assert create.as_string().startswith("DO $role_$ BEGIN ")
    assert create.as_string().endswith(" END $role_$")


def test_a_missing_table_is_named(db, settings):
    settings.OUTBOX = {**settings.OUTBOX, "TABLE": "not_there"}
    with pytest.raises(CommandError, match=r"'not_there' does not exist on the alias 'default'.*Run: python manage.py"):
        call_command("outbox_roles")


@pytest.fixture
def login(bench):  # noqa: F811
    """The URL of the bench's database for a user who may harvest and nothing else."""
    role, user = f"harvester_{os.getpid()}", f"user_{os.getpid()}"
    tables = ("state", "purged", "lane", "hold", "dead", "watch")
    found = roles.Relations("public", "outbox", "public.outbox_id_seq", tuple(f"outbox_{suffix}" for suffix in tables))
    for _, statement in roles.statements(found, {"harvester": role}):
        bench.db.execute(statement)
    bench.db.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'secret' IN ROLE {role}")
    parts = urlsplit(bench.url)
    yield urlunsplit(parts._replace(netloc=f"{user}:secret@{parts.hostname}:{parts.port}"))
    bench.db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [user])
    for name in (user, role):
        bench.db.execute(f"DROP OWNED BY {name}")
        bench.db.execute(f"DROP ROLE {name}")


def test_a_harvester_delivers_in_both_ways_and_takes_over(bench, login):  # noqa: F811
    with psycopg.connect(login) as connected, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connected.execute("INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('t', '')")
    for _ in range(2):
        bench.stash(["a", "b"] * 50)
        with bench.working(url=login) as host:
            bench.wait_empty()
            assert host.errors == []
            hosts.finish(host)
    bench.stash(["a", "b"] * 50)
    conf = hosts.settings(BOOTSTRAP_SERVERS=bench.servers, NAME=bench.name)
    with hosts.working(conf, connect=hosts.connector(login)) as host:
        bench.wait_empty()
        assert host.errors == []
        hosts.finish(host)
    bench.check()
