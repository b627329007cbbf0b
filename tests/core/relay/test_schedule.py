"""When a delivery that failed is attempted again."""

from datetime import UTC, datetime

import pytest

from outbox.core.relay.schedule import (
    FULL_JITTER,
    RETRY_AFTER_MAX_S,
    STANDARD_S,
    Schedule,
    exponential,
    fixed,
    retry_after,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_the_default_is_that_of_the_specification():
    schedule = Schedule()
    assert schedule.attempts == 10
    assert [schedule.pause_s(attempts, 0.0) for attempts in range(1, 10)] == list(STANDARD_S)
    assert sum(STANDARD_S) == 75 * 3_600 + 35 * 60 + 5


def test_chance_takes_away_some_of_a_pause():
    assert Schedule().pause_s(2, 0.999) == pytest.approx(240, rel=0.01)


def test_exponential_pauses_grow_to_a_limit_and_chance_may_take_all_of_them():
    schedule = exponential(6, 1.0, 2.0, 5.0)
    assert [schedule.pause_s(attempts, 0.0) for attempts in range(1, 6)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert schedule.jitter == FULL_JITTER
    assert schedule.pause_s(3, 0.75) == 1.0


def test_exponential_pauses_of_very_many_attempts_have_their_limit():
    assert exponential(5_000, 1.0, 10.0, 300.0).pauses_s[-1] == 300.0


def test_fixed_pauses_are_alike():
    schedule = fixed(4, 30.0, jitter=0.0)
    assert [schedule.pause_s(attempts, 0.9) for attempts in range(1, 4)] == [30.0, 30.0, 30.0]


@pytest.mark.parametrize(("attempts", "is_last"), [(0, False), (1, False), (2, True), (3, True)])
def test_the_last_attempt_is_known(attempts, is_last):
    assert fixed(3, 1.0).is_last(attempts) is is_last


def test_without_a_charged_attempt_it_is_the_first_pause():
    assert Schedule().pause_s(0, 0.0) == STANDARD_S[0]


def test_attempts_above_the_schedule_get_the_longest_pause():
    """The schedule was shortened while a delivery waited."""
    assert fixed(3, 7.0, jitter=0.0).pause_s(50, 0.0) == 7.0


def test_a_receiver_may_ask_for_a_longer_pause_within_a_limit():
    schedule = fixed(3, 10.0)
    assert schedule.pause_s(1, 0.0, retry_after_s=60.0) == 60.0
    assert schedule.pause_s(1, 0.0, retry_after_s=1.0) == 10.0
    assert schedule.pause_s(1, 0.0, retry_after_s=1e9) == RETRY_AFTER_MAX_S
    assert schedule.pause_s(1, 0.0, retry_after_s=-5.0) == 10.0


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("99999999999999999999999", RETRY_AFTER_MAX_S),
        ("Thu, 01 Jan 2026 12:02:00 GMT", 120.0),
        ("Thu, 01 Jan 2026 12:02:00", 120.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
        ("Fri, 01 Jan 2049 12:00:00 GMT", RETRY_AFTER_MAX_S),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("²", None),
        ("Thu, 99 Jan 2026 12:02:00 GMT", None),
    ],
)
def test_a_header_retry_after_is_seconds_or_a_date(header, seconds):
    assert retry_after(header, NOW) == seconds
