import pytest

from outbox.core.at_least_once.requests import MarkPace
from outbox.core.at_least_once.values import Limits


@pytest.mark.parametrize(
    ("found", "left_out", "excludes", "expected"),
    [
        (0, False, False, True),
        (1, False, False, False),
        (0, True, False, False),
        (0, False, True, False),
    ],
)
def test_only_a_mark_that_finds_nothing_and_leaves_nothing_out_has_seen_all(found, left_out, excludes, expected):
    pace = MarkPace(Limits())
    pace.begins(100, excludes=excludes)
    assert pace.has_seen_all(found, left_out=left_out) is expected


def test_the_pause_grows_while_nothing_is_found_and_is_none_after_a_full_mark():
    pace = MarkPace(Limits(mark_backoff_min_s=0.002, mark_backoff_max_s=0.006))
    pace.begins(10, excludes=False)
    assert [pace.pause_s(found, 1) for found in (0, 0, 0, 9, 10, 0)] == [0.002, 0.004, 0.006, 0.002, 0.0, 0.002]
    assert [pace.pause_s(0, 2) for _ in range(4)] == [0.004, 0.008, 0.012, 0.012]
