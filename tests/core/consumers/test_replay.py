"""Which messages a replay handles, and which are refused."""

import pytest

from outbox.core.consumers.replay import KnownPartition, NoReplay, Replay, span
from outbox.core.consumers.values import Partition, Position

ONE = Partition("orders", 0)


def known(next=50, *, topic_id="id", bounds=(10, 90)):
    return KnownPartition(Position(next, "id"), topic_id, bounds)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (10, None, range(10, 50)),
        (20, 30, range(20, 30)),
        (20, 50, range(20, 50)),
        (50, None, range(50, 50)),
        (60, None, range(60, 60)),
        (30, 20, range(30, 30)),
    ],
)
def test_a_range_ends_at_the_position_at_the_latest(start, end, expected):
    assert span(ONE, known(), start, end) == expected


@pytest.mark.parametrize(
    ("given", "start", "end", "said"),
    [
        (known(), 20, 51, r"has handled orders\[0\] up to the offset 50, and --to is 51.*Set --to 50, or less"),
        (known(), 9, None, r"holds the offsets 10 to 90, and --from is 9: .* expired. Set --from 10, or more"),
        (known(bounds=(10, 40)), 20, None, r"holds the offsets 10 to 40, and the replay would end at 50"),
        (known(topic_id="other"), 20, None, r"was created again: .* id id, the topic now has the id other.*positions"),
        (
            KnownPartition(None, "id", (10, 90)),
            20,
            None,
            r"has no position in orders\[0\], so it has handled nothing there",
        ),
    ],
)
def test_what_the_consumer_has_not_handled_is_refused(given, start, end, said):
    with pytest.raises(NoReplay, match=said):
        span(ONE, given, start, end)


def test_its_positions_have_a_name_that_no_consumer_can_have():
    replay = Replay(7, "shop.record", "orders", "id", {ONE: range(10, 50)}, stashes=False, request="")
    assert replay.name == "shop.record#7"
    assert (replay.begins, replay.ends) == ({ONE: Position(10, "id")}, {ONE: 50})
