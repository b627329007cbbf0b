import pytest

from outbox.core.at_least_once.lane import ANSWERS, SENT_ROWS, WORKER, MarkLane, Reported
from outbox.core.at_least_once.scoreboard import Phase
from outbox.core.region import UnexpectedEvent


@pytest.mark.parametrize("table", [SENT_ROWS, ANSWERS, WORKER])
def test_every_state_can_be_reached(table):
    assert table.unreachable() == set()


def test_a_reason_is_news_once_until_the_rows_are_gone():
    lane = MarkLane()
    assert [lane.kept(reason) for reason in ("a", "a", "b", "b", "a")] == [True, False, True, False, True]
    assert lane.is_stopped
    lane.gone()
    assert not lane.is_stopped
    assert lane.kept("a")


@pytest.mark.parametrize("phase", Phase)
def test_people_are_shown_the_phase_of_the_term_or_that_the_lane_is_stopped(phase):
    lane = MarkLane()
    assert lane.shown(phase) == phase.value
    lane.kept("a")
    assert lane.shown(phase) == "stopped"
    lane.ends()
    assert lane.shown(phase) == "stopped"


def test_a_lane_ends_once():
    lane = MarkLane()
    assert not lane.has_ended
    lane.ends()
    assert lane.has_ended
    with pytest.raises(UnexpectedEvent):
        lane.ends()


@pytest.mark.parametrize("is_trusted", [False, True])
@pytest.mark.parametrize("knows_holds", [False, True])
@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.parametrize("phase", Phase)
def test_a_lane_goes_on_while_it_is_trusted_and_nothing_is_in_its_way(phase, is_stopped, knows_holds, is_trusted):
    lane = MarkLane()
    if is_stopped:
        lane.kept("a")
    expected = is_trusted and (phase is Phase.FINISHING or (knows_holds and not is_stopped))
    assert lane.may_go_on(phase, is_trusted=is_trusted, knows_holds=knows_holds) is expected


def test_the_brokers_answer_as_the_last_reports_tell():
    lane, found = MarkLane(), []
    for event in (Reported.UNDELIVERED, Reported.ACKNOWLEDGED, Reported.ACKNOWLEDGED, Reported.UNDELIVERED):
        lane.reported(event)
        found.append(lane.is_delivering)
    assert found == [False, True, True, False]
