import pytest

from outbox.core.exactly_once.decisions import AskElection, Closed, Idle, Stop, Why
from outbox.core.exactly_once.lane import (
    ACTIVITY,
    DECISION,
    PARTS,
    PHASES,
    Activity,
    AskHost,
    Did,
    Doubt,
    Lane,
    Retake,
    StayStopped,
    TryAgain,
    what_follows,
)
from outbox.core.exactly_once.takeover import Unreadable
from outbox.core.region import UnexpectedEvent

OWNING = [Did.TURN, Did.ALLOWED, Did.TOOK_OVER]
SENDING = [*OWNING, Did.DEALT]


def lane(*events):
    machine = Lane()
    for event in events:
        machine.on(event)
    return machine


@pytest.mark.parametrize(
    ("events", "phase"),
    [
        ([], "new"),
        ([Did.TURN], "waiting"),
        ([Did.TURN, Did.TURN], "waiting"),
        ([Did.TURN, Did.ALLOWED], "taking over"),
        ([Did.TURN, Did.ALLOWED, Did.TURN], "waiting"),
        ([Did.TURN, Did.ALLOWED, Did.FAILED], "taking over"),
        ([Did.TURN, Did.ALLOWED, Did.FOUND_CLOSED], "closed"),
        ([Did.TURN, Did.ALLOWED, Did.FOUND_IDLE], "idle"),
        (OWNING, "ready"),
        ([*OWNING, Did.FAILED], "ready"),
        (SENDING, "sending"),
        ([*SENDING, Did.DELIVERED], "ready"),
        ([*SENDING, Did.FAILED], "sending"),
        ([*SENDING, Did.FAILED, Did.TURN], "waiting"),
        ([*SENDING, Did.STOPPED, Did.FAILED], "stopped"),
        ([Did.END], "ended"),
        ([*SENDING, Did.FAILED, Did.END], "ended"),
    ],
)
def test_the_phase_of_a_lane(events, phase):
    machine = lane(*events)
    assert machine.phase == phase
    assert machine.has_ended is (phase == "ended")


def test_people_are_shown_these_words_and_no_others():
    words = {"new", "waiting", "taking over", "ready", "sending", "stopped", "closed", "idle", "ended"}
    assert set(PHASES.values()) == words
    assert set(PHASES) == set(Activity)


def test_nothing_follows_the_end():
    for event in Did:
        with pytest.raises(UnexpectedEvent):
            lane(Did.END).on(event)


@pytest.mark.parametrize("events", [[], [Did.TURN], [Did.TURN, Did.ALLOWED], OWNING, [*SENDING, Did.FAILED]])
def test_only_a_lane_that_is_ready_is_dealt_a_batch(events):
    assert ACTIVITY.expects(lane(*events)._activity.state, Did.DEALT) is (events == OWNING)


def test_a_question_to_an_operator_is_news_once_until_the_lane_is_taken_over():
    machine = lane(*OWNING)
    assert not machine.awaits_decision
    assert machine.stopped("which side is right?")
    machine.on(Did.TURN)
    assert machine.awaits_decision
    assert machine.phase == "waiting"
    machine.on(Did.ALLOWED)
    assert not machine.stopped("which side is right?")
    machine.on(Did.TURN)
    machine.on(Did.ALLOWED)
    assert machine.stopped("another question")
    assert machine.stopped_for == "another question"
    machine.on(Did.TURN)
    machine.on(Did.ALLOWED)
    machine.taken_over()
    assert not machine.awaits_decision
    assert machine.stopped("another question")


@pytest.mark.parametrize("table", [ACTIVITY, DECISION, PARTS])
def test_every_state_can_be_reached(table):
    assert table.unreachable() == set()


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (AskElection(), AskHost()),
        (Doubt(), AskHost()),
        (Stop(Why.ROWS_KEPT, "why"), StayStopped("why")),
        (Unreadable("why"), StayStopped("why")),
        (Closed(3), TryAgain(0.05, Did.FOUND_CLOSED)),
        (Idle(3), TryAgain(0.5, Did.FOUND_IDLE)),
        (Retake(), TryAgain()),
        (None, TryAgain()),
    ],
)
def test_what_follows_a_takeover_that_did_not_succeed_or_an_order(found, expected):
    assert what_follows(found) == expected
    assert TryAgain().pause_s == 0.0


def test_a_worker_whose_parts_are_missing_has_nothing_to_settle():
    machine = lane()
    assert not machine.is_made
    machine.made()
    assert machine.is_made
