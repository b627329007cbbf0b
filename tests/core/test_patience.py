"""Pauses grow, vary and stay below their cap; a circuit tells whether something is away."""

from hypothesis import given
from hypothesis import strategies as st

from outbox.core.patience import Backoff, Circuit, CircuitState, Hope

ALWAYS_LONGEST = 1 - 2**-53


def circuit(min_s=1.0, max_s=8.0):
    return Circuit(Backoff(min_s, max_s, lambda: ALWAYS_LONGEST))


def test_each_pause_is_twice_the_one_before_up_to_the_longest():
    backoff = Backoff(0.5, 10.0, lambda: ALWAYS_LONGEST)
    assert [round(backoff.failed(), 6) for _ in range(7)] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    backoff.worked()
    assert round(backoff.failed(), 6) == 0.5


@given(st.floats(0.001, 10), st.floats(1, 1000), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=40))
def test_jitter_takes_at_most_half_and_never_adds(min_s, factor, draws):
    max_s, numbers = min_s * factor, iter(draws)
    backoff = Backoff(min_s, max_s, lambda: next(numbers))
    for turn in range(len(draws)):
        longest_s = min(max_s, min_s * 2.0**turn)
        assert longest_s / 2 <= backoff.failed() <= longest_s <= max_s


def test_a_year_of_failures_does_not_overflow():
    backoff = Backoff(0.05, 2.0, lambda: 0.5)
    backoff.failures = 10**9
    assert backoff.failed() == 1.5


def test_a_circuit_opens_waits_tries_once_and_closes():
    found = circuit()
    assert found.may_try(0.0)
    assert found.failed(10.0, "no broker answers") > 0.999
    assert found.view.state is CircuitState.OPEN
    assert not found.may_try(10.5)
    assert found.may_try(11.0)
    assert found.view.state is CircuitState.HALF_OPEN
    assert not found.may_try(11.0), "one attempt decides, not the backlog"
    found.worked()
    assert found.is_closed
    assert found.may_try(11.0)


def test_an_outage_has_one_beginning_and_its_latest_reason():
    found = circuit()
    found.failed(10.0, "a")
    assert found.may_try(20.0)
    found.failed(20.0, "b")
    view = found.view
    assert (view.since, view.reason, view.failures) == (10.0, "b", 2)
    assert 21.9 < view.retry_at <= 22.0
    found.worked()
    found.failed(30.0, "c")
    assert (found.view.since, found.view.failures) == (30.0, 1), "full speed after return: pauses begin anew"


def test_hope_ends_when_something_is_missing_for_too_long_without_a_break():
    hope = Hope()
    assert [hope.missing(now, 30.0) for now in (5.0, 34.9, 35.0)] == [False, False, True]
    hope.renewed()
    assert [hope.missing(now, 30.0) for now in (40.0, 69.0)] == [False, False]
    assert Hope().missing(5.0, 0.0), "there is none at all"
