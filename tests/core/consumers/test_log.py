"""Whether a log is the one of a position: each answer names both sides and what to do."""

import pytest

from outbox.core.consumers import log
from outbox.core.consumers.log import Bounds
from outbox.core.consumers.overrun import is_overrun
from outbox.core.consumers.values import Fetched, Partition, Position

PARTITION, POSITION = Partition("orders", 2), Position(40, "first", 5)


@pytest.mark.parametrize(
    ("position", "topic_id", "is_other"),
    [
        (POSITION, "first", False),
        (POSITION, "second", True),
        (POSITION, None, False),
        (POSITION, "", False),
        (Position(40), "second", False),
    ],
)
def test_another_id_is_another_topic_and_none_is_waited_for(position, topic_id, is_other):
    assert bool(log.other_topic(PARTITION, position, topic_id)) is is_other


@pytest.mark.parametrize(
    ("position", "waited_s", "expected"),
    [
        (10, 99.0, Bounds.INSIDE),
        (50, 99.0, Bounds.INSIDE),
        (9, 0.0, Bounds.WAIT),
        (51, 29.9, Bounds.WAIT),
        (51, 30.0, Bounds.OUTSIDE),
        (9, 30.0, Bounds.OUTSIDE),
    ],
)
def test_a_new_leader_has_some_time_to_know_its_bounds(position, waited_s, expected):
    assert log.bounds(Position(position), (10, 50), waited_s) is expected


@pytest.mark.parametrize(
    ("acknowledged", "found", "expected"), [(None, 3, False), (5, 5, False), (5, 6, False), (5, 4, True)]
)
def test_a_position_below_what_was_acknowledged_is_a_database_that_went_back(acknowledged, found, expected):
    before = None if acknowledged is None else Position(acknowledged)
    assert log.went_back(before, Position(found)) is expected


@pytest.mark.parametrize(
    ("text", "sides"),
    [
        (log.other_topic(PARTITION, POSITION, "second"), ("40", "first", "second")),
        (
            log.other_topic(PARTITION, POSITION, "second", 33),
            ("40", "first", "second", "last confirmed at the position 33"),
        ),
        (
            log.older_epoch(PARTITION, POSITION, 6, Fetched("orders", 2, 44, 1, None, None, (), 0)),
            ("40", "44", "epoch 1", "had 6"),
        ),
        (log.truncated(PARTITION, POSITION, "it ends at 30"), ("40", "epoch 5", "ends at 30")),
        (log.row_is_missing(PARTITION, copy=7, acknowledged=None), ("offset 7",)),
        (log.row_is_missing(PARTITION, copy=7, acknowledged=40), ("position 40",)),
        (log.out_of_bounds(PARTITION, Position(5), (10, 50)), ("10 to 50", "is 5", "expired")),
        (log.out_of_bounds(PARTITION, Position(60), (10, 50)), ("10 to 50", "is 60", "lost")),
        (log.failed(PARTITION, 44, 3, "ValueError"), ("44", "3 times", "ValueError")),
    ],
)
def test_a_reason_names_both_sides_and_the_remedy(text, sides):
    assert all(side in text for side in ("orders[2]", *sides, "Run: python manage.py outbox_positions"))


def test_a_partition_without_a_row_and_without_a_trace_of_one_is_new():
    assert not log.row_is_missing(PARTITION, copy=None, acknowledged=None)


@pytest.mark.parametrize(("called_s", "expected"), [(0.0, False), (59.9, False), (60.0, True)])
def test_a_function_has_its_time(called_s, expected):
    assert is_overrun(called_s, 60.0) is expected
