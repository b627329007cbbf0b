"""What one lane holds back, and what it may send."""

from dataclasses import replace

import pytest

from outbox.core.holds.book import Holds, held_as_a_whole
from outbox.core.holds.values import HoldRow


def row_of(id_, key="a"):
    return (id_, "t", key, b"v", None, [], [], None)


def hold_row(record_id=1, *, reason="rejected", wanted="", is_there=True):
    return HoldRow(7, "t", "a", None, 0, record_id, reason, 1, "", "", wanted, None, (), (), is_there)


def test_a_discard_that_is_withdrawn_before_it_was_carried_out_is_not_carried_out():
    holds = Holds()
    holds.load([hold_row(wanted="discard")], 0.0)
    hold_actions = holds.take_actions()
    assert hold_actions.discarded == (1,)
    holds.none_done()  # Kafka was away
    holds.load([hold_row(wanted="retry")], 1.0)
    assert holds.take_actions() is None
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
    """However many records are held: each rejection costs the lane its producer."""
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
    holds.done(holds.take_actions())
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
    assert (len(holds), holds.rejected_count) == (4, 1)


def fated(count):
    holds = Holds(attempts_max=lambda topic: 1)
    for id_ in range(1, count + 1):
        holds.refused(row_of(id_, f"k{id_}"), "MSG_SIZE_TOO_LARGE", 0.0)
    return holds


def heads(hold_actions):
    return [dead_record.hold.head for dead_record in hold_actions.dead_records]


def test_one_batch_carries_out_a_limited_number_of_hold_actions():
    """They share the transaction of its purge: with all of a hundred thousand that would never end in time."""
    holds, seen, sizes = fated(2_500), set(), []
    while (hold_actions := holds.take_actions()) is not None:
        sizes.append(len(hold_actions.dead_records))
        seen.update(heads(hold_actions))
        holds.done(hold_actions)
        holds.release_due(0.0)
    assert sizes == [1_000, 1_000, 500]
    assert seen == set(range(1, 2_501))


def test_a_held_key_holds_back_nothing_of_another_topic():
    holds = Holds()
    holds.refused(row_of(1), "MSG_SIZE_TOO_LARGE", 0.0)
    elsewhere = (3, "u", "a", b"v", None, [], [], None)
    assert holds.keep([row_of(2), elsewhere, row_of(4, "b")]) == [elsewhere, row_of(4, "b")]


def test_hold_actions_that_fail_do_not_release_what_the_next_batch_has_under_way():
    """Released it would be sent, and be made a dead letter by that batch."""

    def requests(wanted):
        rows = [hold_row(id_, wanted=wanted) for id_ in range(1, 1_501)]
        return [replace(row, key=f"k{row.record_id}", id=row.record_id) for row in rows]

    holds = Holds()
    holds.load(requests("skip"), 0.0)
    first, second = holds.take_actions(), holds.take_actions()
    assert (len(first.dead_records), len(second.dead_records)) == (1_000, 500)
    holds.not_done(first)
    holds.load(requests("retry"), 1.0)
    assert len(holds.release_due(1.0)) == 1_000
    under_way = [row_of(id_, f"k{id_}") for id_ in heads(second)]
    assert holds.keep(under_way) == []


def test_hold_actions_that_can_never_be_done_keep_the_others_not_waiting():
    """After a failure fewer are tried, the others first; when these have succeeded, more again."""
    holds, moved = fated(3_000), set()
    for _ in range(60):
        hold_actions = holds.take_actions()
        if hold_actions is None:
            holds.load([], 0.0)
        elif 7 in heads(hold_actions):
            holds.not_done(hold_actions)
            holds.load([], 0.0)
        else:
            moved.update(heads(hold_actions))
            holds.done(hold_actions)
            holds.release_due(0.0)
    assert moved == set(range(1, 3_001)) - {7}
    assert heads(holds.take_actions()) == [7]


def whole_topic(record_id, wanted=""):
    return replace(hold_row(record_id, wanted=wanted), key=None, of_lane=None)


def test_a_topic_whose_next_record_is_refused_does_not_lose_that_one_to_what_was_wanted_of_the_first():
    """Another lane has the topic held, and its record is to leave; a batch of this lane is on its way with another."""
    holds = Holds()
    holds.load([whole_topic(1, "skip")], 0.0)
    holds.refused(row_of(2), "UNKNOWN_TOPIC_OR_PART: no such topic", 0.0, whole_topic=True)
    assert holds.take_actions() is None


def test_a_topic_whose_first_record_has_left_is_held_on_when_another_is_refused():
    holds = Holds()
    holds.load([whole_topic(1, "skip")], 0.0)
    holds.done(holds.take_actions())
    holds.refused(row_of(2), "UNKNOWN_TOPIC_OR_PART: no such topic", 0.0, whole_topic=True)
    holds.release_due(0.0)
    assert holds.keep([row_of(3)]) == []


def test_what_a_held_topic_has_left_out_is_read_again_when_another_of_its_records_is_refused():
    holds = Holds()
    holds.load([whole_topic(4)], 0.0)
    assert holds.keep([row_of(3)]) == []
    holds.refused(row_of(5), "UNKNOWN_TOPIC_OR_PART: no such topic", 0.0, whole_topic=True)
    assert holds.release_due(60.0) == [3]


def test_what_an_operator_has_tried_is_not_given_up_for_its_crashes_meanwhile():
    holds = Holds(attempts_max=lambda topic: 1)
    wanted = hold_row(reason="poison", wanted="retry")
    holds.load([wanted], 0.0)
    assert holds.release_due(0.0) == [1]
    holds.load([wanted], 1.0)
    assert holds.take_actions() is None
    assert holds.keep([row_of(1)]) == [row_of(1)]


def test_a_pause_is_confirmed_by_a_batch_until_the_table_shows_it():
    holds = Holds(3)
    paused = replace(hold_row(None, reason="paused"), of_lane=None, confirmed_by=(1, 2))
    other = replace(paused, id=8, key="b", confirmed_by=(3,))
    holds.load([paused, other], 0.0)
    assert holds.take_actions().confirmed == (7,)
    assert holds.take_actions() is None, "that is under way"
    holds.none_done()
    assert holds.take_actions() is None, "not before the table was looked at again"
    holds.load([paused, other], 1.0)
    hold_actions = holds.take_actions()
    assert hold_actions.confirmed == (7,)
    holds.done(hold_actions)
    assert holds.take_actions() is None
    holds.load([paused, other], 2.0)  # as it was before: a copy that lags behind
    assert holds.take_actions().confirmed == (7,)


def test_an_older_state_of_the_table_does_not_undo_a_refusal():
    holds = Holds(attempts_max=lambda topic: 3)
    holds.refused(row_of(1), "MSG_SIZE_TOO_LARGE: too large", 0.0)
    for now in (10.0, 20.0):
        holds.release_due(now)
        holds.refused(row_of(1), "MSG_SIZE_TOO_LARGE: too large", now)
        holds.load([hold_row()], now)  # of the first attempt
    [dead_record] = holds.take_actions().dead_records
    assert (dead_record.reason, dead_record.hold.attempts, dead_record.hold.code) == (
        "rejected",
        3,
        "MSG_SIZE_TOO_LARGE",
    )


def test_the_table_does_not_replace_the_error_of_a_refusal_that_it_may_not_know_yet():
    holds = Holds()
    known = replace(hold_row(), due_s=0.0, code="TOPIC_EXCEPTION", error="TOPIC_EXCEPTION: of the attempt before")
    holds.load([known], 0.0)
    holds.release_due(1.0)
    holds.refused(row_of(1), "MSG_SIZE_TOO_LARGE: of this attempt", 1.0, is_sure=False)
    holds.load([replace(known, attempts=2, wanted="skip")], 2.0)
    (dead_record,) = holds.take_actions().dead_records
    assert (dead_record.hold.code, dead_record.hold.attempts) == ("MSG_SIZE_TOO_LARGE", 1)
    assert dead_record.hold.error == "MSG_SIZE_TOO_LARGE: of this attempt"


@pytest.mark.parametrize("is_done", [True, False])
def test_a_record_that_the_batch_before_is_refused_is_removed_once(is_done):
    holds = Holds()
    assert holds.keep([row_of(1)]) == [row_of(1)]  # a batch has the record
    holds.load([hold_row(wanted="skip")], 0.0)  # the owner before has written late, and an operator skips it
    hold_actions = holds.take_actions()  # the next batch is dealt
    holds.refused(row_of(1), "MSG_SIZE_TOO_LARGE: by the client", 1.0)
    assert holds.take_actions() is None, "its removal is under way"
    if is_done:
        holds.done(hold_actions)
        assert holds.take_actions() is None
        assert holds.release_due(2.0) == [1]
    else:
        holds.not_done(hold_actions)
        holds.load([hold_row(wanted="skip")], 3.0)
        assert [dead_record.hold.head for dead_record in holds.take_actions().dead_records] == [1]


def test_a_record_that_is_named_beside_others_counts_its_rejection_only_while_none_waits_that_was_not_tried():
    holds = Holds()
    assert holds.counts(row_of(1), is_named=True)
    holds.refused(row_of(2, "b"), "INVALID_RECORD: bad", 0.0, is_sure=False)
    assert not holds.counts(row_of(1), is_named=True)
    assert holds.counts(row_of(1), is_named=False)


def test_of_each_key_the_first_record_is_held_and_every_one_without_key():
    rows = [row_of(1, "a"), row_of(2, "b"), row_of(3, "a"), row_of(4, ""), row_of(5, ""), row_of(6, "b")]
    assert [row[0] for row in Holds().first_of_each_key(rows)] == [1, 2, 4, 5]
    assert [row[0] for row in Holds(keep_empty_key=True).first_of_each_key(rows)] == [1, 2, 4]


def paused(lane, *topics, is_lane=False):
    holds = Holds(lane)
    rows = [HoldRow(n, topic, None, reason="paused") for n, topic in enumerate(topics, 1)]
    holds.load(rows + [HoldRow(9, "", None, lane=lane, of_lane=lane, reason="paused")] * is_lane, 0.0)
    return holds


@pytest.mark.parametrize(
    ("books", "expected"),
    [
        ({0: paused(0, "t", "u"), 1: paused(1, "u", "v")}, ({"u"}, set())),
        ({0: paused(0, "t"), 1: paused(1)}, (set(), set())),
        ({0: paused(0, "t")}, (set(), set())),
        ({0: paused(0, "t"), 2: paused(2, "t")}, (set(), set())),
        ({0: paused(0), 1: paused(1)}, (set(), set())),
        ({0: paused(0, "t", is_lane=True), 1: paused(1, "t")}, ({"t"}, {0})),
    ],
)
def test_a_read_leaves_out_what_every_lane_holds_and_lanes_that_are_paused(books, expected):
    assert held_as_a_whole(books, [0, 1]) == expected
