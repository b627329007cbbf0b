"""Where partitions are read from: their rows, `start` when there are none at all, the beginning when they are new."""

import pytest

from outbox.core.consumers.start import Places, Placing, places
from outbox.core.consumers.values import EARLIEST, LATEST, Partition, Position

FIRST, SECOND, THIRD = (Partition("orders", number) for number in range(3))


def placing(wanted, rows=(), copies=(), acknowledged=(), topic_id="id"):
    return Placing(
        wanted,
        3,
        topic_id,
        {partition: Position(at, id_) for partition, at, id_ in rows},
        dict(copies),
        {partition: Position(at, "id") for partition, at in acknowledged},
    )


def test_a_row_says_it():
    found = places(placing([FIRST], [(FIRST, 7, "id"), (SECOND, 8, "id")]), LATEST)
    assert found == Places({FIRST: Position(7, "id")}, {}, {})


@pytest.mark.parametrize("start", [EARLIEST, LATEST, 1_700_000_000_000])
def test_the_first_assignment_creates_a_row_for_every_partition_of_the_topic(start):
    assert places(placing([SECOND]), start) == Places({}, {}, {FIRST: start, SECOND: start, THIRD: start})


def test_a_partition_that_was_added_begins_at_its_first_offset():
    found = places(placing([FIRST, THIRD], [(FIRST, 7, "id"), (SECOND, 8, "id")]), LATEST)
    assert (found.found, found.create) == ({FIRST: Position(7, "id")}, {THIRD: EARLIEST})


def test_a_row_of_another_topic_of_that_name_stops_its_partition():
    found = places(placing([FIRST, SECOND], [(FIRST, 7, "old"), (SECOND, 8, "id")]), EARLIEST)
    assert set(found.stopped) == {FIRST}
    assert set(found.found) == {SECOND}


@pytest.mark.parametrize("trace", ["copies", "acknowledged"])
def test_a_row_that_was_there_is_not_created_again(trace):
    found = places(placing([FIRST, SECOND], **{trace: [(FIRST, 7)]}), LATEST)
    assert set(found.stopped) == {FIRST}
    assert "7" in found.stopped[FIRST]
    assert SECOND in found.create
    assert FIRST not in found.create


def test_a_topic_that_does_not_exist_yet_is_waited_for():
    assert places(placing([FIRST], [(FIRST, 7, "id")], topic_id=None), LATEST) == Places({}, {}, {})
