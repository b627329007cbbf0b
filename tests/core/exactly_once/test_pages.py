"""How much the next page holds, and how long to wait before it."""

import pytest

from outbox.core.exactly_once.pages import IDLE_MIN_S, IdlePause, PageSizes, bytes_of_a_record, shares


def test_the_first_page_is_small_and_later_ones_grow_to_what_is_set():
    sizes = PageSizes(5000, 8_000_000)
    limits = [sizes.limit]
    for _ in range(3):
        sizes.adapt(100)
        limits.append(sizes.limit)
    assert limits == [500, 2000, 5000, 5000]
    assert PageSizes(20, 1000).limit == 20


@pytest.mark.parametrize(("record_bytes", "limit"), [(1, 500), (4_000, 250), (999_999, 1), (99_999_999, 1)])
def test_pages_of_large_records_have_fewer_of_them(record_bytes, limit):
    sizes = PageSizes(500, 1_000_000)
    sizes.adapt(record_bytes)
    assert sizes.limit == limit


def test_pages_shrink_while_the_brokers_are_too_slow_for_them_and_grow_again():
    sizes = PageSizes(5000, 8_000_000)
    for _ in range(5):
        sizes.adapt(100)
    seen = []
    for now in range(8):
        sizes.too_slow(now - 0.5, now)
        sizes.too_slow(now - 0.5, now + 0.1)  # another lane's share of the same page
        sizes.adapt(100)
        seen.append((sizes.limit, sizes.bytes_max))
    assert [rows for rows, _ in seen] == [1250, 312, 78, 19, 4, 1, 1, 1]
    assert (seen[0][1], seen[-1][1]) == (2_000_000, 1000)
    grown = 0
    while (sizes.limit, sizes.bytes_max) != (5000, 8_000_000):
        sizes.enlarge()
        sizes.adapt(100)
        grown += 1
    assert 50 < grown < 150


def test_pauses_grow_until_something_is_told():
    idle, pauses = IdlePause(0.05), []
    for _ in range(30):
        pauses.append(idle.pause_s)
        idle.made()
    assert pauses[0] == IDLE_MIN_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(0.056)
    idle.ended()
    assert idle.pause_s == IDLE_MIN_S


def rows(*lanes):
    return [(id_, "t", "k" * id_, None, [], [], None, 0, lane) for id_, lane in enumerate(lanes, 1)]


def test_a_page_is_divided_by_the_lanes_of_its_rows():
    page = rows(2, 0, 2)
    assert shares(page, [0, 1, 2], 3) == {0: page[1:2], 1: [], 2: [page[0], page[2]]}
    assert shares(page, [0], 1)[0] is page, "one lane has them all"
    assert shares([], [0, 1], 2) == {0: [], 1: []}


def test_the_size_of_records_is_that_of_each_sixteenth():
    assert bytes_of_a_record([]) is None
    assert bytes_of_a_record(rows(0)) == 2
    assert bytes_of_a_record(rows(*[0] * 33)) == (1 + 17 + 33) // 3 + 1
