"""The tables of what is held, and the register that follows them."""

from itertools import product

import pytest

from outbox.core.holds.hold import RECORD, TRIAL, BookedHold, HoldEvent, HoldState, Register
from outbox.core.holds.removals import PAUSE, Promise, Said
from outbox.core.holds.values import rejected
from outbox.core.region import UnexpectedEvent

RECORDS = """
    waiting    due        trying
    waiting    rejected    waiting
    waiting    to_leave   leaving
    waiting    forgotten  ended
    trying     rejected    waiting
    trying     not_now    waiting
    trying     delivered  ended
    trying     to_leave   leaving
    trying     forgotten  ended
    leaving    rejected    leaving
    leaving    to_leave   leaving
    leaving    to_stay    waiting
    leaving    taken      under_way
    leaving    forgotten  ended
    under_way  rejected    under_way
    under_way  to_leave   under_way
    under_way  done       over
    under_way  not_done   leaving
    under_way  forgotten  ended
    over       released   ended
    over       forgotten  ended
"""
PAUSES = """
    paused      taken      confirming
    paused      done       confirmed
    paused      not_done   paused
    paused      shown      confirmed
    paused      not_shown  paused
    confirming  done       confirmed
    confirming  not_done   paused
    confirming  shown      confirmed
    confirming  not_shown  confirming
"""


@pytest.mark.parametrize(
    ("table", "states", "events", "text"),
    [(RECORD, HoldState, HoldEvent, RECORDS), (PAUSE, Promise, Said, PAUSES)],
    ids=["record", "pause"],
)
def test_the_table_has_these_transitions_and_refuses_all_others(table, states, events, text):
    lines = [line.upper().split() for line in text.strip().splitlines()]
    expected = {(states[before], events[event]): states[after] for before, event, after in lines}
    for state, event in product(states, events):
        if (state, event) in expected:
            assert table.after(state, event) is expected[state, event]
        else:
            with pytest.raises(UnexpectedEvent):
                table.after(state, event)
    assert not table.unreachable()


def register_of(*names):
    register = Register()
    for number, name in enumerate(names, 1):
        register.place(name, BookedHold(rejected(number, "t", "k", 1, "", 1.0), number, 1.0))
    return register


def test_a_hold_is_found_by_its_state_alone():
    register = register_of("a", "b", "c")
    for event in (HoldEvent.TO_LEAVE, HoldEvent.TAKEN):
        register.on("b", event)
    register.on("c", HoldEvent.DUE)
    assert {state: [*register.of(state)] for state in HoldState if register.of(state)} == {
        HoldState.WAITING: ["a"], HoldState.UNDER_WAY: ["b"], HoldState.TRYING: ["c"]
    }  # fmt: skip
    assert register.blocked(["d"]) == {"a", "b", "d"}
    assert register.blocking("c", "b") is register.get("b")
    assert register.blocking("c") is None
    register.on("c", HoldEvent.DELIVERED)
    assert (len(register), register.get("c"), len(register.all())) == (2, None, 2)
    register.forget("a")
    register.on("b", HoldEvent.DONE)
    assert register.is_blocking, "the key goes on with the next read"
    register.on("b", HoldEvent.RELEASED)
    assert not register.is_blocking
    assert register.forget("b") is None


def test_an_event_that_is_not_expected_changes_nothing():
    register = register_of("a")
    with pytest.raises(UnexpectedEvent):
        register.on("a", HoldEvent.DELIVERED)
    assert [*register.of(HoldState.WAITING)] == ["a"]
    assert register.all()[0].state is HoldState.WAITING


def test_holds_leave_in_the_order_of_their_turn_and_again_after_all_others():
    register = register_of("a", "b", "c")
    for name in ("b", "a", "c"):
        register.on(name, HoldEvent.TO_LEAVE)
    register.on("b", HoldEvent.TAKEN)
    register.on("a", HoldEvent.TO_LEAVE)  # said once more, it keeps its turn
    assert [*register.of(HoldState.LEAVING)] == ["a", "c"]
    register.on("b", HoldEvent.NOT_DONE)
    assert [*register.of(HoldState.LEAVING)] == ["a", "c", "b"]


def test_an_attempt_is_an_operators_until_it_is_rejected():
    hold = BookedHold(rejected(1, "t", "a", 1, "error", 0.5), 1, 10.0)
    found = [hold.is_wanted]
    hold.want(3.0)
    found.append(hold.is_wanted)
    assert hold.retry_at == 3.0
    hold.want(4.0)
    hold.refused_again(hold.row, 1, 20.0)
    assert [*found, hold.is_wanted] == [False, True, False]
    assert not TRIAL.unreachable()
