import pytest

from outbox.core.life import FORCE, LIFE, DaemonLife, LifeEvent, State
from outbox.core.region import UnexpectedEvent

START, STOP, ENDED = LifeEvent


@pytest.mark.parametrize("table", [LIFE, FORCE])
def test_every_state_can_be_reached(table):
    assert table.unreachable() == set()


@pytest.mark.parametrize(
    ("state", "after"),
    [
        (State.CREATED, {START: State.RUNNING, STOP: State.STOPPED}),
        (State.RUNNING, {STOP: State.STOPPING, ENDED: State.STOPPED}),
        (State.STOPPING, {STOP: State.STOPPING, ENDED: State.STOPPED}),
        (State.STOPPED, {START: State.STOPPED, STOP: State.STOPPED, ENDED: State.STOPPED}),
    ],
)
def test_the_life_of_a_daemon(state, after):
    assert {event: LIFE.after(state, event) for event in LifeEvent if LIFE.expects(state, event)} == after


def test_a_daemon_is_started_once_and_not_after_it_was_stopped():
    life = DaemonLife()
    assert life.may_start
    assert life.on(START)
    assert not life.may_start
    with pytest.raises(UnexpectedEvent):
        life.on(START)
    stopped = DaemonLife()
    stopped.on(STOP)
    assert stopped.may_start
    assert not stopped.on(START), "nothing happens"


def test_the_first_stop_is_news():
    life = DaemonLife()
    life.on(START)
    assert [life.on(event) for event in (STOP, STOP, ENDED, STOP)] == [True, False, True, False]


@pytest.mark.parametrize(
    ("events", "is_forced", "has_failed", "expected"),
    [
        ((START,), False, False, False),
        ((START, STOP), False, False, True),
        ((START, STOP), True, False, False),
        ((START, STOP), False, True, False),
        ((START, STOP, ENDED), False, False, False),
    ],
)
def test_what_a_stop_leaves_behind_counts_unless_it_was_forced_or_something_else_failed(
    events, is_forced, has_failed, expected
):
    life = DaemonLife()
    for event in events:
        life.on(event)
    if is_forced:
        life.force()
    assert life.is_forced is is_forced
    assert life.is_late(has_failed=has_failed) is expected
