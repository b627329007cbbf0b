"""What is shown of a partition."""

from dataclasses import replace

import pytest

from outbox.core.consumers.shown import Earlier, Observed, ShownPartition, shown
from outbox.core.consumers.values import Partition

ONE = Partition("orders", 3)
NOW = Observed(ONE, "reading", "", position=10, oldest_ms=None, handled=7)
SHOWN = ShownPartition(ONE, "reading", "", 10, 0, 0.0, 7, None)


def show(end=10, earlier=None, **given):
    return shown(NOW._replace(**given), end, wall_s=1000.0, at=50.0, earlier=earlier)


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({}, {}),
        ({"end": 25}, {"stable_offset": 25, "lag": 15, "oldest_age_s": None}),
        ({"end": 25, "oldest_ms": 990_500}, {"stable_offset": 25, "lag": 15, "oldest_age_s": 9.5}),
        ({"end": 8}, {"stable_offset": 8, "lag": 0}),
        ({"end": 10, "oldest_ms": 999_000}, {"oldest_age_s": 1.0}),
        ({"end": 25, "oldest_ms": 1_005_000}, {"stable_offset": 25, "lag": 15, "oldest_age_s": 0.0}),
        ({"end": None}, {"stable_offset": None, "lag": None, "oldest_age_s": None}),
        ({"position": None}, {"lag": None, "oldest_age_s": None}),
        ({"earlier": Earlier(2, 40.0)}, {"rate": 0.5}),
        ({"earlier": Earlier(7, 40.0)}, {"rate": 0.0}),
        ({"earlier": Earlier(2, 50.0)}, {"rate": None}),
        ({"state": "stopped", "reason": "why"}, {"state": "stopped", "reason": "why"}),
    ],
)
def test_a_partition_is_shown_with_its_lag(given, changed):
    assert show(**given) == replace(SHOWN, **changed)
