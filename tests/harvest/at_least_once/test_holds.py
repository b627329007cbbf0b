"""Holds of the at-least-once worker in their table: refused, set aside, paused, edited."""

import psycopg
import pytest

from outbox import conf
from outbox.core.at_least_once import held
from outbox.core.at_least_once.values import RecordHeld
from outbox.edges.postgres.holds import HoldTable
from outbox.harvest.at_least_once.statements import StatementRunner
from outbox.operations import actions, stats
from outbox.operations.actions import Selector
from tests.harvest.hosts import finish, wait_until
from tests.support.databases import leading
from tests.support.tables import create_companions

HOLDS = "SELECT record_id, key, reason, attempts, error_code FROM outbox_hold ORDER BY id"
DEAD = "SELECT record_id, reason, error_code, attempts, length(value) FROM outbox_dead ORDER BY id"
POISON = "UPDATE outbox SET kafka_value = repeat('x', 2000000) WHERE id = ANY(%s)"
CONFIRMED = "SELECT confirmed_by FROM outbox_hold WHERE reason = 'paused'"


@pytest.fixture
def at(bench, settings, django_db_blocker, monkeypatch):
    monkeypatch.setattr(held, "_LOOK_S", 0.1)
    create_companions(bench.db)
    bench.db.execute("INSERT INTO outbox_state (lanes) VALUES (1)")
    with leading(bench.url, django_db_blocker):
        yield bench


def test_a_refused_record_is_held_in_the_table_and_for_the_next_leader(at):
    ids = at.insert(["bad", "good"] * 20)
    at.db.execute(POISON, [[ids[4]]])
    with at.working():
        wait_until(lambda: at.db.execute(HOLDS).fetchall() == [(ids[4], "bad", "rejected", 2, "MSG_SIZE_TOO_LARGE")])
        wait_until(lambda: at.count == 18)
    at.db.execute("UPDATE outbox_hold SET next_try = now() + interval '1 h'")
    with at.working() as host:
        at.insert(["good"] * 3)
        wait_until(lambda: at.count == 18)
        assert not host.of(RecordHeld)
        at.db.execute("UPDATE outbox SET kafka_value = '5' WHERE id = %s", [ids[4]])
        actions.retry(Selector(ids=[ids[4]]), "ann")
        at.wait_empty()
        wait_until(lambda: at.db.execute(HOLDS).fetchall() == [])
        finish(host)
    assert at.by_key()["bad"] == list(range(1, 41, 2))


def test_many_refused_records_are_written_together(at, monkeypatch):
    """One by one, each purge would wait behind hundreds of commits."""
    writes = []
    write = HoldTable.write
    monkeypatch.setattr(
        HoldTable, "write", lambda self, *given, **named: writes.append(1) or write(self, *given, **named)
    )
    ids = at.insert([f"bad-{n}" for n in range(300)])
    at.db.execute("UPDATE outbox SET kafka_value = repeat('x', 1100000) WHERE id = ANY(%s)", [ids])
    at.insert([f"good-{n % 10}" for n in range(1_000)])
    with at.working():
        wait_until(lambda: at.count == 300)
        wait_until(lambda: len(at.db.execute(HOLDS).fetchall()) == 300)
        assert len(writes) < 150
    with at.working(REJECTION_POLICY="skip") as host:
        at.db.execute("UPDATE outbox_hold SET wanted = 'retry'")
        at.wait_empty()
        wait_until(lambda: at.db.execute(HOLDS).fetchall() == [])
        finish(host)
    assert sorted(row[0] for row in at.db.execute(DEAD).fetchall()) == ids


def test_skip_makes_a_dead_letter_and_the_key_goes_on_in_order(at):
    ids = at.insert([f"k{n % 3}" for n in range(60)])
    at.db.execute(POISON, [[ids[7], ids[10], ids[59]]])
    keyless = at.insert(["", ""])
    at.db.execute(POISON, [[keyless[0]]])
    with at.working(REJECTION_POLICY="skip") as host:
        at.wait_empty()
        wait_until(lambda: at.db.execute(HOLDS).fetchall() == [])
        finish(host)
    found = at.db.execute(DEAD).fetchall()
    expected = [(id_, "rejected", "MSG_SIZE_TOO_LARGE", 1, 2_000_000) for id_ in (ids[7], ids[10], ids[59], keyless[0])]
    assert sorted(found) == expected
    for key, values in at.by_key().items():
        if key is not None:
            assert values == [n + 1 for n in range(60) if f"k{n % 3}" == key and n not in (7, 10, 59)]


def test_operators_skip_discard_pause_and_edit(at):
    ids = at.insert(["a", "b", "c"] * 4)
    at.db.execute(POISON, [[*ids[:3]]])
    with at.working() as host:
        wait_until(lambda: len(at.db.execute(HOLDS).fetchall()) == 3)
        actions.skip(Selector(ids=[ids[0]]), "ann")
        actions.discard(Selector(ids=[ids[1]]), "ann")
        actions.edit(record_id=ids[2], changes={"value": "3"}, actor="ann")
        at.wait_empty()
        wait_until(lambda: at.db.execute(HOLDS).fetchall() == [])
        actions.pause(topic=at.topic, key="a", actor="ann")
        wait_until(lambda: at.db.execute(CONFIRMED).fetchall() == [([0],)])
        at.insert(["a", "b"] * 5)
        wait_until(lambda: at.count == 5)
        assert (host.worker.statistics().held, host.worker.statistics().held_keys) == (1, 0)
        actions.resume(Selector(all=True), "ann")
        at.wait_empty()
        finish(host)
    assert [row[:2] for row in at.db.execute(DEAD).fetchall()] == [(ids[0], "skipped")]
    found = at.by_key()
    assert found["c"] == [3, 6, 9, 12]
    assert found["a"][:3] == [4, 7, 10]
    assert found["a"][3:] == sorted(found["a"][3:])
    assert host.errors == []


def test_what_operators_want_of_poison_records_is_done_too(at):
    """They were placed while the table was harvested exactly once."""
    ids = at.insert(["a", "b", "c", "d"] * 2)
    insert = (
        "INSERT INTO outbox_hold (topic, key, record_id, reason, wanted) SELECT kafka_topic, kafka_key, id, "
        "'poison', w FROM unnest(%s::bigint[], %s::text[]) AS t(r, w) JOIN outbox ON id = r"
    )
    at.db.execute(insert, [ids[:4], ["skip", "discard", "retry", ""]])
    with at.working() as host:
        wait_until(lambda: at.db.execute(HOLDS).fetchall() == [(ids[3], "d", "poison", 0, "")])
        wait_until(lambda: at.count == 2)
        finish(host)
    assert [row[:2] for row in at.db.execute(DEAD).fetchall()] == [(ids[0], "skipped")]
    assert at.by_key() == {"a": [5], "b": [6], "c": [3, 7]}
    with at.working(REJECTION_POLICY="skip") as host:
        at.wait_empty()
        finish(host)
    assert [row[:2] for row in at.db.execute(DEAD).fetchall()] == [(ids[0], "skipped"), (ids[3], "poison")]


def test_a_request_is_carried_out_once_however_long_it_takes(at, monkeypatch):
    asked = []

    def noting(kind):
        original = getattr(StatementRunner, kind)

        def noted(self, name, *given):
            asked.append(name)
            original(self, name, *given)

        return noted

    for kind in ("run", "look"):
        monkeypatch.setattr(StatementRunner, kind, noting(kind))
    ids = at.insert(["k"])
    at.db.execute(POISON, [ids])
    with at.working(STATEMENT_TIMEOUT=60) as host:
        wait_until(lambda: at.db.execute(HOLDS).fetchall())
        with at.db.transaction():
            at.db.execute("SELECT FROM outbox WHERE id = %s FOR UPDATE", ids)
            with psycopg.connect(at.url) as other:
                other.execute("UPDATE outbox_hold SET wanted = 'skip'")
            wait_until(lambda: "dead_letter" in asked)
            begun = asked.count("holds")
            wait_until(lambda: asked.count("holds") > begun + 2)
        at.wait_empty()
        assert asked.count("dead_letter") == 1
        finish(host)


def test_a_deletion_that_deleted_nothing_is_tried_again_before_the_key_goes_on(at, monkeypatch, caplog):
    left = []
    original = StatementRunner.run

    def noted(self, name, *given):
        if name == "dead_letter":
            with psycopg.connect(at.url) as other:
                left.append(other.execute("SELECT id FROM outbox ORDER BY id").fetchall())
        original(self, name, *given)

    monkeypatch.setattr(StatementRunner, "run", noted)
    ids = at.insert(["k"] * 2)
    at.db.execute(POISON, [ids[:1]])
    with at.working(STATEMENT_TIMEOUT=60) as host:
        wait_until(lambda: at.db.execute(HOLDS).fetchall())
        with at.db.transaction():
            at.db.execute("SELECT FROM outbox WHERE id = %s FOR UPDATE", ids[:1])
            with psycopg.connect(at.url) as other:
                other.execute("UPDATE outbox_hold SET wanted = 'skip'")
            wait_until(lambda: left)
            at.db.execute("UPDATE outbox SET leader_id = gen_random_uuid() WHERE id = %s", ids[:1])
        at.wait_empty()
        finish(host)
    assert len(left) >= 2, "once more where a look comes before the mark"
    assert all(found == [(id_,) for id_ in ids] for found in left)
    assert [row[:2] for row in at.db.execute(DEAD).fetchall()] == [(ids[0], "skipped")]
    assert len([r for r in caplog.records if r.getMessage().startswith("dead_letter")]) == 1
    assert at.by_key() == {"k": [2]}


def test_a_pending_record_is_edited_after_the_setting_of_lanes_has_changed(at, settings):
    """The state row has the count of the first harvester, which this delivery never changes."""
    settings.OUTBOX = {**settings.OUTBOX, "DELIVERY": "at-least-once", "LANES": 1}
    at.db.execute("UPDATE outbox_state SET lanes = 4")
    assert stats.of_database(at.db, conf.current())["state"]["lanes"] == 1
    ids = at.insert(["k0", "k1", "k2", "k3"])
    actions.pause(topic=at.topic, actor="ann")
    with at.working() as host:
        for id_ in ids:
            actions.edit(record_id=id_, changes={"value": str(id_)}, actor="ann")
        actions.resume(Selector(topic=at.topic), "ann")
        at.wait_empty()
        finish(host)
    assert sorted(value for values in at.by_key().values() for value in values) == ids


def test_a_topic_at_fault_is_held_key_by_key_and_nothing_of_it_dies(at):
    ids = at.insert(["a", "b", "a", "b"])
    at.db.execute("UPDATE outbox SET kafka_topic = 'not-there'")
    with at.working(REJECTION_POLICY="skip"):
        wait_until(lambda: len(at.db.execute(HOLDS).fetchall()) == 2)
        found = at.db.execute(HOLDS).fetchall()
    assert sorted(row[:3] for row in found) == [(ids[0], "a", "rejected"), (ids[1], "b", "rejected")]
    assert at.db.execute(DEAD).fetchall() == []
    assert at.count == 4


def test_a_kept_empty_key_keeps_its_order_behind_a_refused_record(at):
    """Also for the next leader."""
    ids = at.insert(["", "a"] * 5)
    at.db.execute(POISON, [[ids[2]]])
    with at.working(KEEP_EMPTY_KEY=True):
        wait_until(lambda: at.db.execute(HOLDS).fetchall() == [(ids[2], "", "rejected", 2, "MSG_SIZE_TOO_LARGE")])
        wait_until(lambda: at.count == 4)
    at.db.execute("UPDATE outbox_hold SET next_try = now() + interval '1 h'")
    with at.working(KEEP_EMPTY_KEY=True) as host:
        at.insert(["a"] * 3)
        at.insert([""])
        wait_until(lambda: at.count == 5)
        at.db.execute("UPDATE outbox SET kafka_value = '3' WHERE id = %s", [ids[2]])
        actions.retry(Selector(ids=[ids[2]]), "ann")
        at.wait_empty()
        finish(host)
    assert at.by_key()[""] == [1, 3, 5, 7, 9, 1]
