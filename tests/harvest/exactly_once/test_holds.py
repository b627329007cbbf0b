"""Holds of the exactly-once worker in their table: refused, set aside, paused, edited, quarantined."""

import json
from dataclasses import replace

import pytest

from outbox.core.holds.values import HoldRow
from outbox.core.scoreboard_values import RecordHeld
from outbox.edges.holds import HoldTable
from outbox.edges.transactions import TransactionalProducer
from outbox.harvest.exactly_once_holds import Holds
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
        assert holds(bench) == [(ids[10], "bad", "parked", 2, "MSG_SIZE_TOO_LARGE", True)]
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
    with bench.working(REFUSAL_POLICY="skip"):
        bench.wait_empty()
        wait_until(lambda: holds(bench) == [])
    found = dead(bench)
    assert sorted(row[0] for row in found) == sorted([ids[17], ids[18], ids[22], ids[99]])
    assert {(row[3], row[4], row[5], len(row[2])) for row in found} == {("refused", "MSG_SIZE_TOO_LARGE", 1, 2_000_000)}
    assert all(json.loads(json.dumps(row[6]))[0]["code"] == "MSG_SIZE_TOO_LARGE" for row in found)
    bench.check()


def test_a_lone_poison_record_is_set_aside_though_nothing_else_is_sent(bench):
    ids = bench.stash(["k"])
    poison(bench, ids[0])
    with bench.working(REFUSAL_POLICIES={bench.topic: "skip"}, REFUSAL_ATTEMPTS=2) as host:
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
    with bench.working(REFUSAL_POLICY="skip") as host:
        wait_until(lambda: host.of(RecordHeld))
        wait_until(lambda: [row[1:3] for row in holds(bench)] == [(None, "parked")])
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


def test_a_record_that_ends_its_process_is_quarantined_and_everything_else_arrives(bench, monkeypatch):
    ids = bench.stash([f"k{n % 7}" for n in range(60)])
    culprit, crashes = ids[33], []
    send = TransactionalProducer.send

    def crash(self, rows, *arguments):
        if any(row[0] == culprit for row in rows):
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
    assert holds(bench)[0][:3] == (culprit, "k5", "quarantined")
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


# ---- decided without servers


def row_of(id_, key="a"):
    return (id_, "t", key, b"v", None, [], [], None)


def hold_row(record_id=1, *, reason="parked", wanted="", is_there=True):
    return HoldRow(7, "t", "a", None, 0, record_id, reason, 1, "", "", wanted, None, (), (), is_there)


def test_a_discard_that_is_withdrawn_before_it_was_carried_out_is_not_carried_out():
    holds = Holds()
    holds.load([hold_row(wanted="discard")], 0.0)
    errands = holds.take_errands()
    assert errands.discarded == (1,)
    holds.none_done()  # Kafka was away
    holds.load([hold_row(wanted="retry")], 1.0)
    assert holds.take_errands() is None
    assert holds.release_due(1.0) == [1]


def test_a_hold_that_was_not_lifted_is_lifted_again():
    holds = Holds()
    holds.refused(row_of(1), "MSG_SIZE_TOO_LARGE: too large", 0.0)
    holds.load([hold_row()], 0.0)
    assert holds.release_due(1e9) == [1]
    holds.delivered([row_of(1)])
    assert holds.writes.lifted == [1]
    holds.writes.lifted.clear()  # and PostgreSQL was away
    holds.load([hold_row(is_there=False)], 2.0)
    assert holds.writes.lifted == [1]


def test_a_kept_empty_key_is_held_like_any_other():
    first, second, other = (row_of(id_, key="") for id_ in (1, 2, 3))
    kept, not_kept = Holds(keep_empty_key=True), Holds()
    for holds in (kept, not_kept):
        assert holds.refused(first, "MSG_SIZE_TOO_LARGE: too large", 0.0).name == (("t", "") if holds is kept else 1)
    assert kept.keep([second, (3, "u", *other[2:])]) == [(3, "u", *other[2:])]
    assert not_kept.keep([second, other]) == [second, other]
    successor = Holds(keep_empty_key=True)
    successor.load([replace(hold_row(), key="")], 0.0)
    assert successor.keep([second]) == []


def test_a_hold_of_a_record_that_is_gone_does_not_end_that_of_the_next_one():
    holds = Holds()
    holds.load([hold_row()], 0.0)
    assert holds.keep([row_of(2)]) == []
    holds.load([], 1.0)  # an operator has lifted it
    holds.refused(row_of(2), "MSG_SIZE_TOO_LARGE: too large", 2.0)
    holds.load([hold_row(is_there=False)], 2.0)  # an older state of the table
    assert holds.keep([row_of(3)]) == []


def refused(holds, *ids, now=0.0):
    for id_ in ids:
        holds.refused(row_of(id_, f"k{id_}"), "MSG_SIZE_TOO_LARGE: too large", now)


def test_attempts_that_are_likely_to_fail_are_made_one_at_a_time_with_pauses():
    """However many records are held: each refusal costs the lane its producer."""
    holds = Holds()
    refused(holds, *range(1, 101))
    assert len(holds.release_due(10.0)) == 100
    refused(holds, 1, now=10.0)
    assert holds.release_due(11.9) == []
    assert holds.release_due(12.0) == [2]
    assert holds.release_due(12.1) == [], "the outcome of that one is not known"
    assert holds.keep([row_of(2, "k2"), row_of(3, "k3")]) == [row_of(2, "k2")]
    refused(holds, 2, now=13.0)
    assert holds.release_due(15.0) == [3]
    holds.delivered([row_of(3, "k3")])
    assert len(holds.release_due(15.0)) == 99, "one was taken, so the others may be taken too"


def test_while_a_lane_is_behind_nothing_is_tried_soon_after_a_refusal():
    holds = Holds()
    refused(holds, 1, 2)
    assert holds.release_due(29.9, is_behind=True) == []
    assert holds.release_due(30.0, is_behind=True) == [1, 2]
    refused(holds, 1, now=31.0)
    assert holds.release_due(60.9, is_behind=True) == []
    assert holds.release_due(33.0, is_behind=False) == [2]
    holds.delivered([row_of(2, "k2")])
    assert holds.release_due(34.0, is_behind=True) == [1], "what has refused it takes records again"


@pytest.mark.parametrize("is_behind", [False, True])
@pytest.mark.parametrize("is_sure", [False, True])
def test_records_that_are_refused_unceasingly_keep_no_other_from_being_tried(is_behind, is_sure):
    """Of those that are left out of their batches there may be more every second."""
    holds = Holds()
    holds.refused(row_of(1), "UNKNOWN_TOPIC_OR_PART: no such topic", 0.0, whole_topic=True)
    for tenth in range(1, 400):
        if 1 in holds.release_due(tenth / 10, is_behind=is_behind):
            break
        row = (1 + tenth, "other", *row_of(1 + tenth, f"k{tenth}")[2:])
        holds.refused(row, "MSG_SIZE_TOO_LARGE: too large", tenth / 10, is_sure=is_sure)
    else:
        pytest.fail("the topic is there again, and nobody tries it")


def test_a_record_that_is_gone_keeps_no_other_from_being_tried():
    """Deleted before its hold was written, so that the table of holds does not know it."""
    holds = Holds()
    refused(holds, 1, 2, 3)
    assert holds.release_due(10.0) == [1, 2, 3]
    refused(holds, 2, 3, now=10.0)
    assert holds.release_due(12.0) == [1]
    for now in (13.0, 40.0):
        holds.load([], now)
        assert holds.release_due(now) == []
    holds.load([], 40.1)
    assert 3 in holds.release_due(40.1)


def test_what_an_operator_wants_is_tried_at_once():
    holds = Holds()
    refused(holds, 1, 2)
    holds.release_due(10.0)
    refused(holds, 1, now=10.0)
    holds.load([replace(hold_row(2, wanted="retry"), key="k2"), replace(hold_row(1), key="k1")], 10.0)
    assert holds.release_due(10.0) == [2]
    refused(holds, 2, now=10.0)
    assert holds.release_due(10.0) == []


def test_the_largest_of_those_that_are_too_large_is_tried_first():
    holds, rows = Holds(), [row_of(id_, f"k{id_}") for id_ in range(1, 101)]
    rows[69] = (70, "t", "k70", b"v" * 1000, None, [], [], None)
    holds.refused_batch([row[0] for row in rows], rows, "MSG_SIZE_TOO_LARGE")
    assert holds.cut(rows) == rows[:69]
    holds.delivered(rows[:69])
    assert holds.cut(rows[69:]) == [rows[69]]
    refused(holds, 70)
    assert not holds.is_narrow


def test_a_key_whose_head_has_left_goes_on_with_the_next_read_and_not_in_the_middle_of_one():
    """The purge tells in a thread of its own that the head is gone, perhaps between two pages of the reader."""
    holds = Holds(attempts_max=lambda topic: 1)
    refused(holds, 1)
    assert holds.keep([row_of(2, "k1")]) == []
    holds.done(holds.take_errands())
    assert holds.keep([row_of(3, "k1")]) == [], "2 was left out before"
    assert holds.release_due(0.0) == [1]
    assert holds.keep([row_of(2, "k1"), row_of(3, "k1")]) == [row_of(2, "k1"), row_of(3, "k1")]


def test_what_operators_pause_is_not_counted_as_refused():
    holds = Holds()
    holds.refused(row_of(1), "MSG_SIZE_TOO_LARGE: too large", 0.0)
    paused = [
        HoldRow(8, "t", "b", None, 0, None, "paused", 0, "", "", "", None, (), (), True),
        HoldRow(9, "t", "c", None, 0, 3, "editing", 0, "", "", "", None, (), (), True),
        HoldRow(10, "", None, 0, 0, None, "paused", 0, "", "", "", None, (), (), True),
    ]
    holds.load([hold_row(), *paused], 0.0)
    assert (len(holds), holds.refused_count) == (4, 1)


def test_a_topic_that_is_refused_counts_in_the_lane_of_its_head_alone(bench):
    bench.db.execute("UPDATE outbox_state SET lanes = 4")
    [id_] = bench.stash(["k"])
    bench.db.execute(
        "INSERT INTO outbox_hold (topic, record_id, reason) SELECT kafka_topic, id, 'parked' FROM outbox WHERE id = %s",
        [id_],
    )
    rows = HoldTable("outbox").load(bench.db, 4)
    lanes = [Holds(number) for number in range(4)]
    for holds in lanes:
        holds.load(rows, 0.0)
    assert [len(holds) for holds in lanes] == [1, 1, 1, 1]
    assert sorted(holds.refused_count for holds in lanes) == [0, 0, 0, 1]
    assert lanes[rows[0].head_lane].refused_count == 1


def fated(count):
    holds = Holds(attempts_max=lambda topic: 1)
    for id_ in range(1, count + 1):
        holds.refused(row_of(id_, f"k{id_}"), "MSG_SIZE_TOO_LARGE", 0.0)
    return holds


def heads(errands):
    return [burial.record_id for burial in errands.burials]


def test_one_batch_carries_out_a_limited_number_of_errands():
    """They share the transaction of its purge: with all of a hundred thousand that would never end in time."""
    holds, seen, sizes = fated(2_500), set(), []
    while (errands := holds.take_errands()) is not None:
        sizes.append(len(errands.burials))
        seen.update(heads(errands))
        holds.done(errands)
        holds.release_due(0.0)
    assert sizes == [1_000, 1_000, 500]
    assert seen == set(range(1, 2_501))


def test_a_held_key_holds_back_nothing_of_another_topic():
    holds = Holds()
    holds.refused(row_of(1), "MSG_SIZE_TOO_LARGE", 0.0)
    elsewhere = (3, "u", "a", b"v", None, [], [], None)
    assert holds.keep([row_of(2), elsewhere, row_of(4, "b")]) == [elsewhere, row_of(4, "b")]


def test_errands_that_fail_do_not_release_what_the_next_batch_has_under_way():
    """Released it would be sent, and be made a dead letter by that batch."""

    def wishes(wanted):
        rows = [hold_row(id_, wanted=wanted) for id_ in range(1, 1_501)]
        return [replace(row, key=f"k{row.record_id}", id=row.record_id) for row in rows]

    holds = Holds()
    holds.load(wishes("skip"), 0.0)
    first, second = holds.take_errands(), holds.take_errands()
    assert (len(first.burials), len(second.burials)) == (1_000, 500)
    holds.not_done(first)
    holds.load(wishes("retry"), 1.0)
    assert len(holds.release_due(1.0)) == 1_000
    under_way = [row_of(id_, f"k{id_}") for id_ in heads(second)]
    assert holds.keep(under_way) == []


def test_errands_that_can_never_be_done_keep_the_others_not_waiting():
    """After a failure fewer are tried, the others first; when these have succeeded, more again."""
    holds, buried = fated(3_000), set()
    for _ in range(60):
        errands = holds.take_errands()
        if errands is None:
            holds.load([], 0.0)
        elif 7 in heads(errands):
            holds.not_done(errands)
            holds._may_try = True  # the table was looked at
        else:
            buried.update(heads(errands))
            holds.done(errands)
            holds.release_due(0.0)
    assert buried == set(range(1, 3_001)) - {7}
    assert heads(holds.take_errands()) == [7]
