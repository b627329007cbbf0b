"""How long a read may take, what it may leave to the server, and how long to pause after one that has failed."""

import pytest

from outbox.core.exactly_once.reading import ReadPatience


def patience():
    return ReadPatience(5.0, lambda: 1.0)


def test_a_read_that_fails_for_want_of_time_is_given_twice_as_much_up_to_a_bound():
    reads = patience()
    times = []
    for _ in range(8):
        times.append(reads.timeout_s)
        reads.timed_out(0.0, passed_over=False)
    assert times == [5, 10, 20, 40, 80, 160, 320, 320]
    assert reads.is_stretched
    reads.returned()
    assert (reads.timeout_s, reads.is_stretched) == (5, False)


@pytest.mark.parametrize(("passed_over", "now", "may"), [(False, 0, True), (True, 599, False), (True, 600, True)])
def test_what_could_not_be_passed_over_in_time_is_fetched_for_a_while(passed_over, now, may):
    reads = patience()
    reads.timed_out(0.0, passed_over=passed_over)
    assert reads.may_pass_over(now) is may


def test_a_held_backlog_is_passed_over_from_the_first_read_on():
    assert patience().may_pass_over(0.0)


def test_pauses_after_failures_grow_until_something_works():
    reads = patience()
    assert [reads.failed() for _ in range(7)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])
    reads.worked()
    assert reads.failed() == pytest.approx(0.1)
