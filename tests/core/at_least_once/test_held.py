"""Holds of an at-least-once lane: what is asked of their table, and what becomes of records."""

from dataclasses import replace
from uuid import UUID

import pytest

from outbox.core.at_least_once.held import (
    CONFIRMING,
    HOLD_TABLES,
    HOLDS_SEEN,
    ConfirmHolds,
    HeldRecords,
    LiftHolds,
    PlaceHolds,
    RemoveRecords,
)
from outbox.core.at_least_once.scoreboard import Phase
from outbox.core.at_least_once.values import RecordHeld
from outbox.core.holds.values import DISCARD, POISON, REJECTED, RETRY, SKIPPED, DeadRecord, HoldActions, HoldRow

LEADER, LATER = UUID(int=1), UUID(int=2)
NEVER = float("inf")


class Board:
    """What of a scoreboard is asked and told here."""

    def __init__(self):
        self.phase, self.leader_id = Phase.RUNNING, LEADER
        self.asleep, self.known, self.told = set(), set(), []

    def is_asleep(self, id_):
        return id_ in self.asleep

    def knows(self, id_):
        return id_ in self.known

    def remark(self, reason, now):
        self.told.append(("remark", reason))

    def retry(self, id_, at):
        self.told.append(("retry", id_, at))

    def expect(self, *given):
        self.told.append(("expect", *given))

    def gone(self, ids, now):
        self.told.append(("gone", *ids))


@pytest.fixture
def board():
    return Board()


def held_on(board, *, attempts_max=0, looked=True):
    held = HeldRecords(3, board, lambda topic: attempts_max)
    if looked:
        assert held.looks(0.0, 1)
        assert held.loaded([], 0.0) == []
    return held


def row(id_=7, **given):
    return HoldRow(**{"id": 1, "topic": "t", "key": "a", "record_id": id_, "attempts": 2, **given})


def rejection(id_, key="a", attempts=1, error="MSG_SIZE_TOO_LARGE: too large"):
    return RecordHeld(id_, ("t", key) if key else id_, attempts, 10.0, error, "t")


def look(held, rows, now=100.0):
    assert held.looks(now, 1)
    return held.loaded(rows, now)


@pytest.mark.parametrize("table", [HOLDS_SEEN, HOLD_TABLES, CONFIRMING])
def test_every_state_can_be_reached(table):
    assert table.unreachable() == set()


# ---- when the table is asked


def test_nothing_is_marked_before_the_holds_are_known(board):
    held = held_on(board, looked=False)
    assert not held.may_mark
    assert held.looks(0.0, 1)
    assert not held.looks(9.0, 1), "one look at a time"
    held.failed(9.0)
    assert not held.may_mark
    assert [held.looks(now, 1) for now in (9.9, 10.0)] == [False, True]
    held.loaded([], 10.0)
    assert held.may_mark
    assert held.looks(11.0, 1)
    held.failed(11.0)
    assert held.may_mark, "what was known still counts"


@pytest.mark.parametrize(("lanes", "pause_s"), [(1, 1.0), (3, 3.0), (9, 4.0)])
def test_where_a_process_has_several_lanes_each_looks_less_often(board, lanes, pause_s):
    held = held_on(board, looked=False)
    assert held.looks(0.0, lanes)
    held.loaded([], 0.0)
    assert [held.looks(now, lanes) for now in (pause_s - 0.1, pause_s)] == [False, True]


def test_where_there_are_no_tables_they_are_looked_for_now_and_then_and_nothing_is_written(board):
    held = held_on(board, attempts_max=1, looked=False)
    assert held.looks(0.0, 1)
    assert held.loaded(None, 0.0) == []
    assert held.may_mark
    assert held.rejected(rejection(7), 1.0) == []
    assert [held.looks(now, 1) for now in (29.9, 30.0)] == [False, True]
    held.loaded([], 30.0)
    assert held.rejected(rejection(7), 31.0) != []


# ---- what operators hold


def test_what_operators_hold_is_confirmed_when_nothing_of_it_is_in_flight(board):
    held, paused = held_on(board), row(None, reason="paused")
    assert look(held, [paused]) == []
    assert board.told == [("remark", "holds")]
    assert {(scope.topic, scope.key) for scope in held.scopes} == {("t", "a")}
    assert look(held, [paused], 200.0) == [], "the lane still works under the same leader id"
    board.leader_id = LATER
    assert look(held, [paused], 300.0) == [ConfirmHolds((1,))]
    assert look(held, [paused], 400.0) == [], "one confirmation at a time"
    held.confirmed()
    assert look(held, [paused], 500.0) == [ConfirmHolds((1,))]
    held.confirmed()
    assert look(held, [replace(paused, confirmed_by=(3,))], 600.0) == []
    assert board.told == [("remark", "holds")], "there is nothing new"
    look(held, [], 700.0)
    assert held.scopes == frozenset()


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.RUNNING])
def test_only_a_lane_that_runs_confirms(board, phase):
    held = held_on(board)
    look(held, [row(None, reason="paused")])
    board.leader_id, board.phase = LATER, phase
    assert look(held, [row(None, reason="paused")], 200.0) == []


def test_a_lane_that_has_marked_nothing_yet_confirms_under_its_first_leader_id(board):
    held = held_on(board)
    board.phase = Phase.TAKING
    look(held, [row(None, reason="paused")])
    board.phase = Phase.RUNNING
    assert look(held, [row(None, reason="paused")], 200.0) == [ConfirmHolds((1,))]


@pytest.mark.parametrize(
    ("given", "is_left_out"),
    [
        ({"reason": "paused"}, True),
        ({"reason": "editing"}, True),
        ({"reason": POISON}, True),
        ({"reason": POISON, "wanted": RETRY}, False),
        ({"reason": REJECTED}, False),
        ({"reason": "paused", "of_lane": 4}, False),
        ({"reason": "paused", "of_lane": 3}, True),
    ],
)
def test_what_is_left_out_of_the_marks(board, given, is_left_out):
    held = held_on(board)
    look(held, [row(**given)])
    assert bool(held.scopes) is is_left_out


# ---- records


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [("expect", 7, ("t", "a"), 2, 105.0)]),
        ({"due_s": 3.0}, [("expect", 7, ("t", "a"), 2, 103.0)]),
        ({"key": ""}, [("expect", 7, 7, 2, 105.0)]),
        ({"key": None}, []),
        ({"is_there": False}, []),
    ],
)
def test_what_an_earlier_leader_was_refused_waits_for_its_next_attempt(board, given, expected):
    look(held_on(board, looked=False), [row(**given)])
    assert board.told == expected


def test_the_holds_of_records_that_are_gone_are_lifted_and_a_wanted_attempt_is_made(board):
    held = held_on(board)
    assert look(held, [row(7, is_there=False), row(8, wanted=RETRY), row(9, is_there=False)]) == [LiftHolds((7, 9))]
    assert board.told == [("retry", 8, 100.0)]


@pytest.mark.parametrize(
    ("given", "attempts_max", "expected"),
    [
        ({"wanted": DISCARD}, 0, HoldActions(discarded=(7,))),
        ({"wanted": "skip"}, 0, SKIPPED),
        ({}, 5, None),
        ({"reason": POISON, "wanted": "skip"}, 0, SKIPPED),
    ],
)
def test_a_record_that_is_to_leave_leaves_while_it_sleeps(board, given, attempts_max, expected):
    held, found = held_on(board, attempts_max=attempts_max), row(**given)
    board.asleep.add(7)
    board.phase = Phase.DRAINING  # of the remark, if there is one
    to_do = look(held, [found])
    if expected is None:
        assert to_do == []
        return
    hold_actions = HoldActions((DeadRecord(found, expected),)) if isinstance(expected, str) else expected
    assert to_do == [RemoveRecords(hold_actions, LEADER)]
    assert ("retry", 7, NEVER) in board.told
    assert look(held, [replace(found, wanted=RETRY)], 200.0) == [], "nothing is sent beside its deletion"
    assert ("retry", 7, 200.0) not in board.told


def test_a_record_that_is_awake_does_not_leave(board):
    held = held_on(board)
    board.known.add(7)
    assert look(held, [row(wanted=DISCARD)]) == []


def test_poison_that_is_left_out_of_the_marks_leaves_when_none_of_it_is_in_flight(board):
    held, poison = held_on(board, attempts_max=3), row(reason=POISON)
    assert look(held, [poison]) == [], "a remark comes first"
    board.leader_id = LATER
    board.known.add(7)
    assert look(held, [poison], 200.0) == []
    board.known.clear()
    (removal,) = look(held, [poison], 300.0)
    assert removal == RemoveRecords(HoldActions((DeadRecord(poison, POISON),)), LATER, are_marked=False)
    assert look(held, [poison], 400.0) == [], "its deletion is under way"
    held.removed(removal, (), 401.0)
    assert look(held, [poison], 500.0) == [removal]


# ---- what is rejected


def test_what_is_rejected_is_written_together_while_a_write_is_under_way(board):
    held = held_on(board)
    (first,) = held.rejected(rejection(7), 1.0)
    assert isinstance(first, PlaceHolds)
    assert [one.record_id for one in first.rows] == [7]
    assert held.rejected(rejection(8, "b"), 1.0) == []
    assert held.rejected(rejection(9, "b", 2), 1.0) == []
    assert held.rejected(rejection(10, ""), 1.0) == []
    assert held.rejected(rejection(11, ""), 1.0) == []
    (second,) = held.written()
    assert [one.record_id for one in second.rows] == [9, 10, 11], "the last of a key, and each without key"
    assert held.written() == []


@pytest.mark.parametrize(
    ("attempts", "error", "is_dead"),
    [
        (2, "MSG_SIZE_TOO_LARGE: too large", False),
        (3, "MSG_SIZE_TOO_LARGE: too large", True),
        (3, "TOPIC_AUTHORIZATION_FAILED: denied", False),
    ],
)
def test_after_enough_rejections_a_record_becomes_a_dead_letter_unless_its_topic_is_the_cause(
    board, attempts, error, is_dead
):
    (found,) = held_on(board, attempts_max=3).rejected(rejection(7, attempts=attempts, error=error), 1.0)
    if is_dead:
        assert isinstance(found, RemoveRecords)
        assert found.hold_actions.heads == (7,)
        assert (found.leader_id, found.are_marked, found.is_written) == (LEADER, True, True)
        assert board.told == [("retry", 7, NEVER)]
    else:
        assert isinstance(found, PlaceHolds)
        assert board.told == []


def test_dead_letters_of_an_older_leader_id_are_not_written(board):
    held = held_on(board, attempts_max=1)
    (first,) = held.rejected(rejection(7), 1.0)
    held.rejected(rejection(8, "b"), 1.0)
    board.leader_id = LATER
    assert held.removed(first, (7,), 2.0) == []
    assert held.rejected(rejection(8, "b"), 3.0) != [], "its deletion is not waited for"


def test_records_that_a_deletion_has_not_found_are_tried_again(board):
    held = held_on(board, attempts_max=1)
    (removal,) = held.rejected(rejection(7), 1.0)
    held.rejected(rejection(8, "b"), 1.0)
    (later,) = held.removed(removal, (), 2.0)
    assert later.hold_actions.heads == (8,)
    assert board.told[-2:] == [("gone",), ("retry", 7, 7.0)]
    assert held.removed(later, (8,), 3.0) == []
    assert board.told[-1] == ("gone", 8)
