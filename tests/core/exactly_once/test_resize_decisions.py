"""What a change of the lane count comes to. How its steps interleave with owners is searched in `tests/core`."""

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from outbox.core.exactly_once import decisions as v
from outbox.core.exactly_once.ledger import Entry
from outbox.core.exactly_once.resize import (
    Act,
    GoodPartitions,
    Opening,
    as_wanted,
    given_up,
    is_repair,
    judge_idle,
    lanes_to_settle,
    marked,
    may_have_been_open,
    next_act,
    while_ledger_is_open,
)

HERE = UUID(int=1)
OPEN = v.StateRow(3, resize_no=1)
CHANGING = v.StateRow(3, resize_to=5, resize_no=2)
REPAIR = v.StateRow(3, resize_to=3, resize_no=2)


def entry(batch=4, lane=5, change=1):
    return Entry(lane, batch, UUID(int=9), HERE, (1, 2), 77, datetime(2026, 1, 1, tzinfo=UTC), change)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (OPEN, Act.STANDS),
        (replace(OPEN, wanted=3), Act.REFUSE),
        (replace(OPEN, wanted=5), Act.BEGIN),
        (replace(OPEN, wanted=1), Act.BEGIN),
        (CHANGING, Act.SETTLE),
        (replace(CHANGING, wanted=7), Act.SETTLE),
        (REPAIR, Act.SETTLE),
    ],
)
def test_what_the_row_asks_for(state, expected):
    assert next_act(state) is expected


@pytest.mark.parametrize(
    ("state", "partitions", "expected"),
    [(CHANGING, 9, [2, 1, 0]), (REPAIR, 5, [4, 3, 2, 1, 0]), (REPAIR, 2, [2, 1, 0])],
)
def test_lane_0_is_settled_last_and_a_repair_settles_every_lane_that_ever_was(state, partitions, expected):
    assert list(lanes_to_settle(state, partitions)) == expected
    assert is_repair(state) is (state is REPAIR)


@pytest.mark.parametrize(
    ("state", "mark", "expected"),
    [(CHANGING, 1, False), (CHANGING, 2, True), (CHANGING, None, True), (REPAIR, 1, True), (REPAIR, None, True)],
)
def test_there_is_no_way_back_once_lanes_may_have_been_open(state, mark, expected):
    assert may_have_been_open(state, mark) is expected


def test_the_lanes_are_opened_as_wanted_or_as_they_were():
    assert as_wanted(CHANGING) == Opening(5)
    assert given_up(CHANGING, "Lane 1 is stopped.") == Opening(3, "The lane count was not changed. Lane 1 is stopped.")


def test_lane_0_is_marked_once_with_the_number_of_the_change():
    assert marked(entry(change=1), 2) == entry(change=2)
    assert marked(entry(change=2), 2) is None


@pytest.mark.parametrize(
    ("last", "purged", "expected"),
    [
        (None, 0, type(None)),
        (entry(), 4, type(None)),
        (entry(), 3, v.Stop),
        (entry(change=2), 3, v.Closed),
        (entry(change=2), 4, type(None)),
        (entry(lane=6), 4, v.Stop),
    ],
)
def test_a_lane_out_of_use_that_is_ahead_forbids_every_lane(last, purged, expected):
    assert isinstance(judge_idle(5, OPEN, HERE, purged, last), expected)


def test_good_partitions_are_remembered_for_one_connection_and_count():
    good = GoodPartitions()
    good.begin(1.0, HERE, OPEN).add(3)
    assert 3 in good.begin(1.0, HERE, OPEN)
    assert not good.has_all(1.0, OPEN)
    good.found_all(1.0, OPEN)
    assert good.has_all(1.0, OPEN)
    assert not good.has_all(2.0, OPEN)
    assert not good.has_all(1.0, replace(OPEN, lane_count=2))
    for opened_at, state in ((2.0, OPEN), (2.0, replace(OPEN, resize_no=2))):
        some = good.begin(opened_at, HERE, state)
        assert 3 not in some
        some.add(3)


def test_a_look_over_an_older_connection_tells_nothing_to_one_over_a_newer():
    good = GoodPartitions()
    older = good.begin(1.0, HERE, OPEN)
    good.begin(2.0, HERE, OPEN)
    older.add(3)
    assert 3 not in good.begin(2.0, HERE, OPEN)


def test_while_the_mark_cannot_be_read_nothing_begins_and_nothing_is_opened():
    assert while_ledger_is_open(v.StateRow(2, wanted=4)) == v.StateRow(2)
    assert while_ledger_is_open(v.StateRow(2)) == v.StateRow(2)
    assert while_ledger_is_open(v.StateRow(2, resize_to=4)) is None
