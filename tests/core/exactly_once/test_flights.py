"""What a read leaves out, and when a share of it may follow."""

from dataclasses import dataclass

import pytest

from outbox.core.exactly_once.decisions import AskElection, GoOn, StateRow, Stop
from outbox.core.exactly_once.flights import STAND, Elsewhere, Flights, Stale, Stand, Standing, Taking, Told
from outbox.core.region import UnexpectedEvent


@dataclass(eq=False)
class Share:
    lane: int
    ids: list[int]
    filenode: int = 1


def test_a_plan_is_a_copy_made_before_the_read():
    flights, lane = Flights(), Standing(0)
    lane.begin(0)
    share = Share(0, [3, 5, 9])
    flights.add(share)
    flights.committed(share, 1)
    plan = flights.plan([lane], 100)
    flights.purged(0, 1)
    assert list(plan.excluded_above(0)) == [3, 5, 9]
    assert list(plan.excluded_above(3)) == [5, 9]
    assert list(plan.excluded_above(9)) == []
    assert list(flights.plan([lane], 100).excluded_above(0)) == []


def test_the_ids_of_several_batches_ascend():
    flights, lane = Flights(), Standing(0)
    lane.begin(0)
    for ids in ([4, 8], [5, 6], [1]):
        flights.add(Share(0, ids))
    assert list(flights.plan([lane], 1).excluded_above(1)) == [4, 5, 6, 8]


def test_a_page_grows_with_the_lanes_to_a_limit():
    lanes = [Standing(number) for number in range(6)]
    limits = []
    for lane in lanes:
        lane.begin(0)
        limits.append(Flights().plan(lanes, 10).limit)
    assert limits == [10, 15, 15, 15, 15, 15]


def test_a_purge_ends_the_flight_of_its_batch_and_of_no_later_one_with_the_same_ids():
    flights, old, new = Flights(), Share(0, [1, 2]), Share(0, [1, 2, 3])
    flights.add(old)
    flights.committed(old, 4)
    flights.add(new)  # ids were drawn a second time while the purge was repeated
    flights.purged(0, 4)
    assert flights.count(0) == 3
    flights.committed(new, 5)
    flights.purged(1, 5)
    assert flights.count(0) == 3
    flights.purged(0, 5)
    assert flights.count(0) == 0


def test_a_takeover_forgets_the_batches_of_its_lane():
    flights = Flights()
    flights.add(Share(0, [1]))
    flights.add(Share(1, [2]))
    flights.forget(0)
    assert (flights.count(0), flights.count(1)) == (0, 1)


def test_only_batches_of_lanes_that_are_read_for_are_left_out():
    # A record of a failed batch of lane 0 may be lane 1's now, after a change of the count; left out of what lane 1
    # reads first, its successors in the key would overtake it.
    flights, lanes = Flights(), [Standing(0), Standing(1)]
    flights.add(Share(0, [7, 8]))
    lanes[1].begin(0)
    assert list(flights.plan(lanes, 1).excluded_above(0)) == []
    lanes[0].begin(0)
    assert list(flights.plan(lanes, 1).excluded_above(0)) == [7, 8]


def test_a_share_belongs_to_one_readiness_of_its_lane():
    flights, lane = Flights(), Standing(3)
    lane.begin(7)
    plan = flights.plan([lane], 1)
    assert isinstance(lane.judge(plan, 7, ""), GoOn)
    lane.end()
    lane.begin(7)
    assert lane.judge(plan, 7, "") == Stale()


@pytest.mark.parametrize(("purged", "decision"), [(6, Stop), (7, GoOn), (8, GoOn), (9, AskElection)])
def test_m_in_the_page_is_judged_by_what_was_acknowledged_before_and_submitted_since(purged, decision):
    flights, lane = Flights(), Standing(3)
    lane.begin(7)
    plan = flights.plan([lane], 1)
    lane.submitted = 8
    assert isinstance(lane.judge(plan, purged, ""), decision)


def test_a_stopped_lane_waits_for_no_purge():
    lane = Standing(0)
    lane.begin(1)
    lane.submitted = 2
    assert lane.unpurged
    lane.stopped()
    assert (lane.is_being_purged, lane.ready) == (False, False)
    assert lane.unpurged, "what was sent may be in the table until the lane was taken over again"
    lane.end()
    lane.begin(2)
    lane.submitted = 3
    assert lane.is_being_purged


def test_a_new_connection_reads_when_nothing_that_it_would_leave_out_is_in_flight():
    """The server behind it may have drawn ids 3 and 5 for another lane's key, which later records would overtake."""
    flights, busy, other = Flights(), Standing(0), Standing(1)
    lanes = [busy, other]
    assert not flights.may_read(lanes, is_connected=True)
    busy.begin(0)
    other.begin(0)
    assert flights.may_read(lanes, is_connected=False)
    flights.add(Share(0, [3, 5]))
    assert flights.may_read(lanes, is_connected=True)
    assert not flights.may_read(lanes, is_connected=False)
    busy.end()
    assert flights.may_read(lanes, is_connected=False), "nothing is left out for a lane that is not ready"
    busy.begin(1)
    flights.forget(0)
    assert flights.may_read(lanes, is_connected=False)


def test_a_page_from_another_file_than_what_is_in_flight_is_not_used():
    """Ids 3 and 5 may have been drawn again since the TRUNCATE: left out, their records would be overtaken."""
    flights, lane = Flights(), Standing(0)
    lane.begin(0)
    assert flights.plan([lane], 1).fits(2)
    flights.add(Share(0, [3, 5]))
    assert flights.plan([lane], 1).fits(1)
    assert not flights.plan([lane], 1).fits(2)


def test_a_page_read_before_the_lane_went_elsewhere_and_came_back_is_of_another_time():
    """Its worker is a new one by then, and both have begun once."""
    before, after = Standing(0), Standing(0)
    before.begin(5)
    plan = Flights().plan([before], 10)
    after.begin(5)
    assert isinstance(before.judge(plan, 5, ""), GoOn)
    assert after.judge(plan, 5, "") == Stale()


AWAY, READY, AT_WORK, RECALLED, FINISHING, LEAVING = Stand


@pytest.mark.parametrize(
    ("state", "after"),
    # TAKEN_OVER, DEALT, SHARE_ENDED, RECALLED, FAILED, LEAVES; None: cannot happen
    [
        (AWAY, [READY, None, None, None, AWAY, LEAVING]),
        (READY, [None, AT_WORK, None, RECALLED, AWAY, None]),
        (AT_WORK, [None, None, READY, FINISHING, AWAY, None]),
        (RECALLED, [None, None, None, None, AWAY, None]),
        (FINISHING, [None, None, RECALLED, None, AWAY, None]),
        (LEAVING, [None, None, None, None, LEAVING, None]),
    ],
)
def test_what_the_round_knows_of_a_lane_follows_its_table(state, after):
    for event, expected in zip(Told, after, strict=True):
        if expected is None:
            with pytest.raises(UnexpectedEvent):
                STAND.after(state, event)
        else:
            assert STAND.after(state, event) is expected
    assert not STAND.unreachable()


def test_a_lane_that_is_recalled_finishes_its_share_and_is_told_once():
    lane = Standing(0)
    lane.begin(0)
    lane.dealt()
    session = lane.session
    assert lane.recall()
    assert not lane.recall()
    assert (lane.ready, lane.has(session)) == (False, True)
    lane.share_ended()
    assert not lane.has(session)


def test_a_share_is_given_up_when_its_lane_ends():
    lane = Standing(0)
    lane.begin(0)
    lane.dealt()
    session = lane.session
    lane.end()
    lane.begin(0)
    lane.dealt()
    assert (lane.has(session), lane.has(lane.session)) == (False, True)


@pytest.mark.parametrize(
    ("number", "state", "is_outdated"),
    [
        (1, StateRow(3, resize_no=2), False),
        (1, StateRow(4, resize_no=2), True),
        (1, StateRow(3, resize_no=3), True),
        (1, StateRow(3, resize_no=1), True),
        (1, StateRow(3, resize_no=2, resize_to=4), True),
        (1, StateRow(3, resize_no=2, wanted=4), False),
        (0, StateRow(3, resize_no=2, wanted=4), True),
    ],
)
def test_a_lane_is_taken_over_anew_when_the_count_changes(number, state, is_outdated):
    lane = Standing(number, count=3, change=2)
    assert lane.is_outdated(state) is is_outdated


def test_a_share_is_handed_over_to_the_session_that_it_was_read_for():
    lane = Standing(0)
    lane.begin(0)
    session = lane.session
    assert lane.may_have(session)
    lane.recall()
    assert not lane.may_have(session)
    lane.end()
    lane.begin(0)
    assert not lane.may_have(session)


def test_a_page_of_another_server_is_judged_by_nothing_else():
    lane = Standing(3)
    lane.begin(7)
    lane.divided(StateRow(4), "a")
    plan = Flights().plan([lane], 1)
    assert isinstance(lane.judge(plan, 7, "a"), GoOn)
    assert lane.judge(plan, 3, "b") == Elsewhere()
    lane.end()
    assert lane.judge(plan, 7, "b") == Elsewhere()
    assert lane.judge(plan, 7, "a") == Stale()
    assert not lane.expects(plan.sessions[3]), "nor is an order of that time meant any more"
    assert lane.expects(lane.session)


@pytest.mark.parametrize(
    ("events", "is_its_session", "left_out", "taking"),
    [
        ([], True, 0, Taking.AS_IT_IS),
        ([], True, 1, Taking.WITHOUT_HELD),
        ([], False, 0, Taking.NOT),
        ([Told.DEALT], True, 0, Taking.AS_IT_IS),
        ([Told.RECALLED], True, 0, Taking.NOT),
        ([Told.FAILED], True, 1, Taking.NOT),
    ],
)
def test_a_lane_takes_a_share_of_its_own_session_without_what_it_holds_since(events, is_its_session, left_out, taking):
    lane = Standing(0)
    lane.begin(1)
    session = lane.session if is_its_session else lane.session - 1
    for event in events:
        lane.region.on(event)
    for _ in range(left_out):
        lane.leaves_out()
    assert lane.taking(session, 0) is taking
