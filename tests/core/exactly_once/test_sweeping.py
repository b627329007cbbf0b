import pytest

from outbox.core.exactly_once.sweeping import SWEEP, Slices
from outbox.core.region import UnexpectedEvent

INTERVAL_S, FAILURE_S = 30.0, 7.0


def slices(*before):
    """After slices of so many rows, each looked at within a moment."""
    made = Slices(INTERVAL_S, FAILURE_S, 0.0)
    for rows in before:
        made.begin(0.0)
        made.looked(0.0, rows, 1_000_000, 0.001)
    return made


def test_every_state_is_reached():
    assert not SWEEP.unreachable()


@pytest.mark.parametrize(
    ("rows", "took_s", "blocks"),
    [
        (0, 0.0, 1024),
        (4_999, 0.14, 1024),
        (5_000, 0.0, 256),
        (0, 0.15, 256),
        (20_000, 0.6, 256),
        (20_001, 0.0, 64),
        (0, 0.61, 64),
    ],
)
def test_the_next_slice_is_larger_smaller_or_the_same(rows, took_s, blocks):
    made = slices()
    made.begin(30.0)
    made.looked(30.0, rows, 1_000_000, took_s)
    assert (made.block, made.blocks) == (256, blocks)


@pytest.mark.parametrize(
    ("took_s", "pause_s"), [(0.0, 5.0), (0.05, 5.0), (0.1, 10.0), (0.6, 60.0), (0.7, 60.0), (3600.0, 60.0)]
)
def test_a_slice_takes_a_hundredth_of_the_time_and_delays_the_next_one_by_a_minute_at_most(took_s, pause_s):
    made = slices()
    made.begin(30.0)
    made.looked(31.0, 0, 1_000_000, took_s)
    assert not made.is_due(31.0 + pause_s - 0.001)
    assert made.is_due(31.0 + pause_s)


def test_a_slice_that_failed_is_looked_at_again_in_smaller_ones():
    made = slices(10_000)
    assert (made.block, made.blocks) == (256, 256)
    made.begin(40.0)
    assert not made.is_due(1e9), "one slice at a time"
    with pytest.raises(UnexpectedEvent):
        made.begin(40.0)
    made.failed(41.0)
    assert (made.block, made.blocks, made.passes) == (256, 64, 0)
    assert [made.is_due(now) for now in (47.9, 48.0)] == [False, True]


def test_however_often_it_fails_a_slice_has_some_blocks_and_never_too_many():
    made = slices(*[0] * 5)
    assert made.blocks == 4096
    for _ in range(9):
        made.begin(0.0)
        made.failed(0.0)
    assert made.blocks == 16


def test_a_pass_ends_with_the_last_block_and_the_next_begins_when_its_time_has_come():
    made = slices()
    for now, size, block in ((30.0, 300, 256), (35.0, 300, 0), (65.0, 200, 0)):
        made.begin(now)
        made.looked(now, 10_000, size, 0.001)
        assert made.block == block
    assert made.passes == 2
    assert [made.is_due(now) for now in (94.9, 95.0)] == [False, True]


@pytest.mark.parametrize("now", [29.9, 30.0])
def test_nothing_is_looked_at_before_the_first_interval_is_over(now):
    assert slices().is_due(now) is (now == 30.0)
