"""Where a lane begins, and when it does not."""

import pytest

from outbox.core.graphs.attempts import UnreadableRecord
from outbox.core.graphs.positions import BeginLane, InputState, LaneEntry, StopLane, begin, decode, objection
from tests.core.graphs.graphs import alts, join, processor

PIPE = processor()


def at(committed=None, *, topic_id="a", first=0, end=9):
    return InputState(committed, topic_id, first, end)


def entry(topic_id="a", **positions):
    return LaneEntry(positions, dict.fromkeys(positions, topic_id))


@pytest.mark.parametrize(
    ("of", "recorded", "found", "expected"),
    [
        (PIPE, None, {"orders": at(first=2)}, BeginLane({"orders": 2}, ("orders",))),
        (processor(start="latest"), None, {"orders": at()}, BeginLane({"orders": 9}, ("orders",))),
        (PIPE, entry(orders=5), {"orders": at(5)}, BeginLane({"orders": 5})),
        (PIPE, entry(orders=5), {"orders": at(None)}, BeginLane({"orders": 5})),
        (PIPE, entry(orders=5), {"orders": at(4)}, "has the offset 4 of orders[3], and the topic of positions has 5"),
        (PIPE, None, {"orders": at(4)}, "has the offset 4 of orders[3], and the topic of positions has none"),
        (PIPE, entry(orders=5), {"orders": at(5, topic_id="b")}, "deleted and created again: its id was a and is b"),
        (PIPE, entry(orders=5), {"orders": at(5, first=6)}, "position 5 of orders[3] is out of bounds"),
        (PIPE, entry(orders=10), {"orders": at(10)}, "position 10 of orders[3] is out of bounds"),
        (alts(), entry(web=5), {"web": at(5), "shop": at()}, BeginLane({"shop": 0, "web": 5}, ("shop",))),
        (join(), entry(orders=5), {"orders": at(5), "stock": at()}, "The join has new inputs: stock"),
        (join(), None, {"orders": at(first=2), "stock": at()}, "the first offsets are orders[3] 2"),
        (join(start="latest"), None, {"orders": at(first=2), "stock": at(end=4)},
         BeginLane({"orders": 9, "stock": 4}, ("orders", "stock"))),
        (join(), None, {"orders": at(), "stock": at()}, BeginLane({"orders": 0, "stock": 0}, ("orders", "stock"))),
    ],
)  # fmt: skip
def test_both_sides_are_compared(of, recorded, found, expected):
    answer = begin(of, 3, recorded, found)
    if isinstance(expected, str):
        assert isinstance(answer, StopLane)
        assert expected in answer.reason
    else:
        assert answer == expected


def test_an_entry_can_be_written_and_read():
    found = entry(orders=5, stock=7)
    assert decode(found.encode("price")) == found
    with pytest.raises(UnreadableRecord):
        decode(b"{}")


@pytest.mark.parametrize(
    ("of", "counts", "policies", "text"),
    [
        (PIPE, {"orders": 4}, {}, ""),
        (PIPE, {}, {}, "The topics orders do not exist"),
        (join(), {"orders": 4, "stock": 4}, {"orders": "delete"}, ""),
        (join(), {"orders": 4, "stock": 2}, {}, "orders has 4, stock has 2"),
        (alts(), {"web": 4, "shop": 2}, {}, "shop has 2, web has 4"),
        (join(), {"orders": 4, "stock": 4}, {"stock": "compact,delete"}, "stock is compacted"),
        (alts(), {"web": 4, "shop": 4}, {"shop": "compact"}, ""),
    ],
)
def test_what_a_processor_needs_of_its_topics(of, counts, policies, text):
    assert text in objection(of, counts, policies)
    assert bool(text) == bool(objection(of, counts, policies))
