"""Holds of the exactly-once worker in their table: refused, set aside, paused, edited, poison."""

import json

import pytest

from outbox.core.at_least_once.values import RecordHeld
from outbox.core.holds.book import Holds
from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer
from outbox.edges.postgres.holds import HoldTable
from outbox.operations import actions
from outbox.operations.actions import Selector
from tests.harvest.exactly_once.bench import finish, wait_until
from tests.support.databases import leading

HOLDS = "SELECT record_id, key, reason, attempts, error_code, next_try IS NOT NULL FROM outbox_hold ORDER BY id"
DEAD = "SELECT record_id, key, value, reason, error_code, attempts, history FROM outbox_dead ORDER BY id"
POISON = "UPDATE outbox SET kafka_value = repeat('x', 2000000) WHERE id = ANY(%s)"


@pytest.fixture
def at(bench, settings, django_db_blocker):
    """The operations lead to the bench."""
    settings.OUTBOX = {**settings.OUTBOX, "NAME": bench.name, "BOOTSTRAP_SERVERS": bench.servers}
    with leading(bench.url, django_db_blocker):
        yield bench


def poison(bench, *ids):
    """The records are too large for the client; their values are not expected to arrive."""
    for id_ in ids:
        key, value = bench.db.execute("SELECT kafka_key, kafka_value FROM outbox WHERE id = %s", [id_]).fetchone()
        bench.stashed.by_key[key].remove(value)
    bench.db.execute(POISON, [list(ids)])


def holds(bench):
    return bench.db.execute(HOLDS).fetchall()


def dead(bench):
    return bench.db.execute(DEAD).fetchall()


def test_a_refused_record_is_held_in_the_table_and_survives_its_owner(bench):
    ids = bench.stash(["bad", "good"] * 20)
    bench.db.execute(POISON, [[ids[10]]])
    with bench.working():
        wait_until(lambda: [row[3] for row in holds(bench)] == [2])
        assert holds(bench) == [(ids[10], "bad", "rejected", 2, "MSG_SIZE_TOO_LARGE", True)]
        wait_until(lambda: bench.count == 15)
    bench.db.execute("UPDATE outbox_hold SET next_try = now() + interval '1 h'")
    with bench.working() as host:  # abandoned before: the hold is all that is left of it
        bench.stash(["good"] * 5)
        wait_until(lambda: bench.count == 15)
        assert not host.of(RecordHeld)
        bench.db.execute("UPDATE outbox SET kafka_value = '11' WHERE id = %s", [ids[10]])
        bench.db.execute("UPDATE outbox_hold SET wanted = 'retry'")
        bench.wait_empty()
        wait_until(lambda: holds(bench) == [])
    bench.check()
    history = [entry for entry in bench.entries() if not entry.ids]
    assert history == []  # no batch without rows where nothing is to be done


def test_skip_makes_a_dead_letter_and_the_key_goes_on_in_order(bench):
    ids = bench.stash([f"k{n % 5}" for n in range(100)])
    poison(bench, ids[17], ids[18], ids[22], ids[99])
    with bench.working(REJECTION_POLICY="skip"):
        bench.wait_empty()
        wait_until(lambda: holds(bench) == [])
    found = dead(bench)
    assert sorted(row[0] for row in found) == sorted([ids[17], ids[18], ids[22], ids[99]])
    assert {(row[3], row[4], row[5], len(row[2])) for row in found} == {
        ("rejected", "MSG_SIZE_TOO_LARGE", 1, 2_000_000)
    }
    assert all(json.loads(json.dumps(row[6]))[0]["code"] == "MSG_SIZE_TOO_LARGE" for row in found)
    bench.check()


def test_a_lone_poison_record_is_set_aside_though_nothing_else_is_sent(bench):
    ids = bench.stash(["k"])
    poison(bench, ids[0])
    with bench.working(REJECTION_POLICIES={bench.topic: "skip"}, REJECTION_ATTEMPTS=2) as host:
        wait_until(lambda: len(dead(bench)) == 1)
        bench.wait_empty()
        assert (dead(bench)[0][0], dead(bench)[0][5]) == (ids[0], 2)
        wait_until(lambda: bench.purged == bench.entries()[-1].batch)
        assert [entry.ids for entry in bench.entries()] == [()]
        finish(host)
    bench.stash(["k"])
    with bench.working():
        bench.wait_empty()
    assert bench.by_key() == {"k": ["2"]}


def test_a_topic_that_refuses_is_never_set_aside(bench):
    bench.stash(["k", "k"], topic="not-there")
    with bench.working(REJECTION_POLICY="skip") as host:
        wait_until(lambda: host.of(RecordHeld))
        wait_until(lambda: [row[1:3] for row in holds(bench)] == [(None, "rejected")])
    assert dead(bench) == []
    assert bench.count == 2


def test_operators_skip_and_discard_what_is_held(at):
    ids = at.stash(["a", "b", "c"] * 3)
    poison(at, *ids[:2])
    with at.working():
        wait_until(lambda: len(holds(at)) == 2)
        assert actions.skip(Selector(ids=[ids[0]]), "ann").pending == 1
        assert actions.discard(Selector(topic=at.topic, key="b"), "ann").pending == 1
        at.wait_empty()
        wait_until(lambda: holds(at) == [])
    assert [(row[0], row[3]) for row in dead(at)] == [(ids[0], "skipped")]
    at.check()


def test_keys_topics_and_lanes_are_paused_and_go_on_in_order(at):
    with at.working():
        for given in ({"topic": at.topic, "key": "a"}, {"topic": at.topic}, {"lane": 0}):
            actions.pause(**given, actor="ann")
            wait_until(
                lambda: at.db.execute("SELECT confirmed_by FROM outbox_hold").fetchall() == [([0],)],
            )
            at.stash(["a", "b"] * 10)
            left = 10 if "key" in given else 20
            wait_until(lambda left=left: at.count == left)
            at.stash(["a"])
            assert actions.resume(Selector(all=True), "ann").changed == 1
            at.wait_empty()
    at.check()


def test_what_is_paused_before_the_start_is_not_sent(at):
    actions.pause(topic=at.topic, key="a", actor="ann")
    at.stash(["a", "b"] * 10)
    with at.working():
        wait_until(lambda: at.count == 10)
        wait_until(lambda: at.db.execute("SELECT confirmed_by FROM outbox_hold").fetchall() == [([0],)])
        assert at.by_key().keys() == {"b"}
        actions.resume(Selector(topic=at.topic, key="a"), "ann")
        at.wait_empty()
    at.check()


def test_a_record_is_edited_while_it_is_held_and_while_it_waits(at):
    ids = at.stash(["a", "b"] * 5)
    at.db.execute(POISON, [[ids[2]]])
    at.stashed.by_key["a"][1] = "edited"
    with at.working():
        wait_until(lambda: len(holds(at)) == 1)
        outcome = actions.edit(record_id=ids[2], changes={"value": "edited"}, actor="ann", reason="too large")
        assert (outcome.changed, outcome.pending) == (1, 1)
        at.wait_empty()
        actions.pause(topic=at.topic, actor="ann")
        wait_until(lambda: at.db.execute("SELECT confirmed_by FROM outbox_hold").fetchall() == [([0],)])
        waiting = at.stash(["c", "c"])
        actions.edit(record_id=waiting[0], changes={"value": "other"}, actor="ann")
        at.stashed.by_key["c"][0] = "other"
        actions.resume(Selector(topic=at.topic), "ann")
        at.wait_empty()
        wait_until(lambda: holds(at) == [])
    at.check()


class Crash(BaseException):
    """Ends the lane, and the harvester with it, as nothing that is foreseen does."""


def test_a_record_that_ends_its_process_is_poison_and_everything_else_arrives(bench, monkeypatch):
    ids = bench.stash([f"k{n % 7}" for n in range(60)])
    cause, crashes = ids[33], []
    send = TransactionalProducer.send

    def crash(self, rows, *arguments):
        if any(row[0] == cause for row in rows):
            crashes.append(len(rows))
            raise Crash
        return send(self, rows, *arguments)

    monkeypatch.setattr(TransactionalProducer, "send", crash)
    for _ in range(16):
        with bench.working() as host:
            wait_until(lambda host=host: host.errors or bench.count == 4)
            if not host.errors:
                break
    assert len(crashes) <= 3 + 7  # without counts, then 60 and halves of them, at last twice alone
    assert holds(bench)[0][:3] == (cause, "k5", "poison")
    with bench.working() as host:
        bench.stash(["k1"] * 3)
        wait_until(lambda: bench.count == 4)
        assert not host.errors
        monkeypatch.undo()
        bench.db.execute("UPDATE outbox_hold SET wanted = 'retry'")
        bench.wait_empty()
        wait_until(lambda: holds(bench) == [])
        assert bench.db.execute("SELECT crashes, started FROM outbox_watch").fetchall() == [(0, [])]
        finish(host)
    assert bench.db.execute("SELECT is_clean FROM outbox_watch").fetchall() == [(True,)]
    bench.check()


def test_an_owner_that_lost_its_lane_and_lives_is_not_counted_as_crashed(bench):
    """Two that believe they lead take the lane from each other: no record is to blame for that."""

    def begun(host):
        wait_until(lambda: host.worker.statistics().takeovers)
        bench.db.execute("UPDATE outbox_watch SET started = ARRAY[7]::bigint[]")  # as if it were sending, carefully

    def crashes():
        return bench.db.execute("SELECT crashes FROM outbox_watch").fetchone()[0]

    with bench.working() as first:
        begun(first)
        with bench.working() as second:
            begun(second)
            assert crashes() == 0
    with bench.working() as third:
        begun(third)
        assert crashes() == 1, "nobody else is left"


def test_a_topic_that_is_refused_counts_in_the_lane_of_its_head_alone(bench):
    bench.db.execute("UPDATE outbox_state SET lanes = 4")
    [id_] = bench.stash(["k"])
    bench.db.execute(
        "INSERT INTO outbox_hold (topic, record_id, reason) SELECT kafka_topic, id, 'rejected' "
        "FROM outbox WHERE id = %s",
        [id_],
    )
    rows = HoldTable("outbox").load(bench.db, 4)
    lanes = [Holds(number) for number in range(4)]
    for holds in lanes:
        holds.load(rows, 0.0)
    assert [len(holds) for holds in lanes] == [1, 1, 1, 1]
    assert sorted(holds.rejected_count for holds in lanes) == [0, 0, 0, 1]
    assert lanes[rows[0].head_lane].rejected_count == 1
