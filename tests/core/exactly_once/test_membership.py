import itertools

import pytest

from outbox.core.exactly_once.flights import Standing, Told
from outbox.core.exactly_once.membership import (
    Joining,
    LeaveStep,
    Leaving,
    Unclean,
    joining,
    may_release_lease,
    next_step,
)


@pytest.mark.parametrize(
    ("earlier", "is_ending", "expected"),
    [
        (None, False, Joining.JOINS),
        ("older", False, Joining.REPLACES),
        ("younger", False, Joining.TOO_LATE),
        (None, True, Joining.ENDED),
        ("older", True, Joining.ENDED),
        ("younger", True, Joining.ENDED),
    ],
)
def test_a_lane_joins_unless_a_later_worker_came_before_it(earlier, is_ending, expected):
    made = [Standing(1) for _ in range(3)]
    others = {None: None, "older": made[0], "younger": made[2]}
    assert joining(made[1], others[earlier], is_ending=is_ending) is expected


def standing(*events):
    made = Standing(0)
    for event in events:
        made.region.on(event)
    return made


LEAVING, AT_WORK, FAILED = standing(Told.LEAVES), standing(Told.TAKEN_OVER), standing()


@pytest.mark.parametrize(
    ("lanes", "given", "expected"),
    [
        ([LEAVING], {}, True),
        ([LEAVING, LEAVING], {}, True),
        ([], {}, True),
        ([LEAVING, AT_WORK], {}, False),
        ([LEAVING, FAILED], {}, False),
        ([LEAVING], {"is_kept": False}, False),
        ([LEAVING], {"is_ending": True}, False),
        ([LEAVING], {"has_unsettled": True}, False),
    ],
)
def test_the_last_lane_that_leaves_gives_the_lease_back_if_nothing_is_unsettled(lanes, given, expected):
    known = {"is_kept": True, "is_ending": False, "has_unsettled": False, **given}
    assert may_release_lease(lanes, **known) is expected


@pytest.mark.parametrize(
    ("known", "step"),
    [
        (Leaving(True), LeaveStep.ASK_STATE_ROW),
        (Leaving(True, was_settled=False), "does not know whether Kafka committed"),
        (Leaving(True, was_settled=True), LeaveStep.AWAIT_PURGES),
        (Leaving(False), LeaveStep.AWAIT_PURGES),
        (Leaving(False, is_purged=False), "did not confirm the last purge"),
        (Leaving(False, is_purged=False, may_have_left_rows=True), "did not confirm the last purge"),
        (Leaving(False, is_purged=True, may_have_left_rows=True), "is stopped"),
        (Leaving(False, is_purged=True), LeaveStep.GIVE_BACK),
        (Leaving(True, was_settled=True, is_purged=True), LeaveStep.GIVE_BACK),
        (Leaving(True, was_settled=True, is_purged=True, may_have_left_rows=True), "is stopped"),
    ],
)
def test_a_lane_settles_all_before_it_is_given_back(known, step):
    found = next_step(known)
    if isinstance(step, str):
        assert isinstance(found, Unclean)
        assert step in found.reason
    else:
        assert found is step


def test_every_answer_leads_to_an_end():
    asked = (None, False, True)
    for in_doubt, settled, purged, left in itertools.product((False, True), asked, asked, (False, True)):
        assert isinstance(next_step(Leaving(in_doubt, settled, purged, left)), LeaveStep | Unclean)
    assert next_step(Leaving(True, None, True)) is LeaveStep.ASK_STATE_ROW, "the doubt comes first"
