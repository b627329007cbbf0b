"""How many deliveries a relay leases at a time."""

import pytest

from outbox.core.relay.quotas import LEASED_MAX, Durations, Grant, grant, quota


@pytest.mark.parametrize(
    ("concurrency", "average_s", "held", "expected"),
    [
        (8, None, 0, 8),  # nothing is known of it
        (8, None, 3, 5),
        (8, 0.5, 0, 240),  # 8 at a time, half a second each, within 15 seconds
        (8, 0.5, 200, 40),
        (8, 0.5, 300, 0),
        (8, 60.0, 0, 8),  # slower than that: still those that begin at once
        (64, 0.0, 0, LEASED_MAX),
        (64, 0.001, 999, 1),
        (5_000, None, 0, LEASED_MAX),
    ],
)
def test_a_relay_leases_as_many_as_begin_within_a_quarter_of_the_lease(concurrency, average_s, held, expected):
    assert quota(concurrency, 60.0, average_s, held) == expected


def test_recent_durations_count_more():
    durations = Durations()
    assert durations.average_s is None
    durations.add(1.0)
    assert durations.average_s == 1.0
    for _ in range(30):
        durations.add(3.0)
    assert durations.average_s == pytest.approx(3.0, abs=0.01)


def test_a_duration_is_not_negative():
    durations = Durations()
    durations.add(-1.0)
    assert durations.average_s == 0.0


@pytest.mark.parametrize(
    ("wanted", "rate", "next_s", "expected"),
    [
        (5, 10.0, -3.0, Grant(5, 0.0, 0.1)),  # unused time is lost
        (1_000, 10.0, 0.0, Grant(151, 0.0, 0.1)),  # one now, and 150 in 15 seconds
        (1_000, 10.0, 14.0, Grant(11, 14.0, 0.1)),
        (1_000, 10.0, 15.0, Grant(1, 15.0, 0.1)),
        (1_000, 10.0, 15.1, Grant(0, 15.1, 0.1)),
        (3, 0.01, 0.0, Grant(1, 0.0, 100.0)),
    ],
)
def test_a_rate_limit_grants_what_begins_within_a_quarter_of_the_lease(wanted, rate, next_s, expected):
    assert grant(wanted, rate, next_s, 60.0) == expected


def test_a_grant_moves_the_shared_time_on():
    assert grant(5, 10.0, 0.0, 60.0).moves_on_s == pytest.approx(0.5)
    assert grant(5, 10.0, 99.0, 60.0).moves_on_s == 0.0
