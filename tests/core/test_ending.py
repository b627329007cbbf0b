import pytest

from outbox.core.ending import ANSWER, IN_HAND, LEADERSHIP, EndOfLane, Leadership
from outbox.core.region import Transitions


@pytest.mark.parametrize("table", [ANSWER, IN_HAND, LEADERSHIP])
def test_every_state_can_be_reached(table):
    assert table.unreachable() == set()


@pytest.mark.parametrize(
    ("asked", "deadline", "is_awaited", "has_come", "leaves_time"),
    [
        ("", None, False, False, False),
        ("finish", 10, True, False, True),
        ("finish", 5, True, True, False),
        ("abandon", None, False, True, False),
        ("finish abandon", 10, True, True, False),
        ("abandon finish", 10, True, True, False),
    ],
)
def test_how_a_lane_ends_says_what_may_still_be_waited_for(asked, deadline, is_awaited, has_come, leaves_time):
    ending = EndOfLane()
    for one in asked.split():
        ending.finish(deadline) if one == "finish" else ending.abandon()
    assert ending.is_asked_for is bool(asked)
    assert (ending.is_awaited, ending.has_come(6), ending.leaves_time(6)) == (is_awaited, has_come, leaves_time)
    assert ending.is_clean is (asked == "finish")


@pytest.mark.parametrize("first", ["finish", "abandon"])
def test_of_two_requests_to_end_at_the_same_time_neither_is_lost(monkeypatch, first):
    ending = EndOfLane()
    ask = {"finish": lambda: ending.finish(10), "abandon": ending.abandon}
    others = [name for name in ask if name != first]
    after = Transitions.after

    def interrupted(table, state, event):
        found = after(table, state, event)
        while others:
            ask[others.pop()]()  # in another thread, before the first has written down what it found
        return found

    monkeypatch.setattr(Transitions, "after", interrupted)
    ask[first]()
    assert (ending.is_awaited, ending.has_come(6), ending.leaves_time(6)) == (True, True, False)


@pytest.mark.parametrize(
    ("events", "is_attached", "is_announced", "is_done", "is_news"),
    [
        ("", True, False, False, True),
        ("finished", True, True, True, False),
        ("finished finished", True, True, True, False),
        ("detached", False, False, True, False),
        ("detached finished", False, False, True, False),
        ("detached detached", False, False, True, False),
        ("finished detached", False, True, True, False),
        ("finished detached finished", False, True, True, False),
    ],
)
def test_a_worker_is_heard_until_its_lane_is_taken_away_and_finishes_once(
    events, is_attached, is_announced, is_done, is_news
):
    leadership = Leadership()
    for event in events.split():
        leadership.finished() if event == "finished" else leadership.detach()
    assert (leadership.is_attached, leadership.is_announced, leadership.is_done) == (is_attached, is_announced, is_done)
    assert leadership.finished() is is_news
