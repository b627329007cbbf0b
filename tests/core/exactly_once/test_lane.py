import pytest

from outbox.core.exactly_once.lane import ENDING, Asked, Ending, EndOfLane


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


def test_every_state_of_the_ending_can_be_reached_and_takes_every_request():
    assert ENDING.unreachable() == set()
    assert set(ENDING.transitions) == {(state, asked) for state in Ending for asked in Asked}
