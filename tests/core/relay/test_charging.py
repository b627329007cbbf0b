"""Who pays for an attempt that failed."""

import pytest

from outbox.core.relay.charging import NEVER, WINDOW_S, Payer, payer
from outbox.core.relay.results import AttemptCause

BEGAN, NOW = 100.0, 110.0
RECENTLY, LONG_AGO = NOW - WINDOW_S + 1, NOW - WINDOW_S - 1
M, D, N = Payer.MESSAGE, Payer.DESTINATION, Payer.NEITHER
TABLE = [
    # cause, the circuit is closed, another was accepted at; had not failed before, no success since, a success since
    (AttemptCause.DESTINATION, True, RECENTLY, N, N, M),
    (AttemptCause.DESTINATION, True, LONG_AGO, D, D, D),
    (AttemptCause.DESTINATION, False, RECENTLY, D, D, D),
    (AttemptCause.DESTINATION, False, LONG_AGO, D, D, D),
    (AttemptCause.MESSAGE, True, RECENTLY, M, M, M),
    (AttemptCause.MESSAGE, True, LONG_AGO, M, M, M),
    (AttemptCause.MESSAGE, False, RECENTLY, D, D, D),
    (AttemptCause.MESSAGE, False, LONG_AGO, D, D, D),
    (AttemptCause.REJECTED, True, LONG_AGO, M, M, M),
    (AttemptCause.REJECTED, False, LONG_AGO, M, M, M),
    (AttemptCause.GONE, True, LONG_AGO, N, N, N),
    (AttemptCause.GONE, False, RECENTLY, N, N, N),
    (AttemptCause.FORBIDDEN, True, RECENTLY, N, N, N),
    (AttemptCause.FORBIDDEN, False, LONG_AGO, N, N, N),
]
BEFORE = {"first": NEVER, "none since": 60.0, "some since": 40.0}
"""When the message failed before; the latest delivery that was accepted began at 50."""


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize(("cause", "is_closed", "succeeded_at", "first", "none_since", "some_since"), TABLE)
def test_an_attempt_is_charged_by_this_table(cause, is_closed, succeeded_at, first, none_since, some_since, before):
    found = payer(
        cause,
        is_closed=is_closed,
        now=NOW,
        began_at=BEGAN,
        failed_at=BEFORE[before],
        succeeded_at=succeeded_at,
        success_began_at=50.0,
    )
    assert found is {"first": first, "none since": none_since, "some since": some_since}[before]


def paid(now=NOW, began_at=BEGAN, failed_at=NEVER, succeeded_at=NEVER, success_began_at=NEVER):
    return payer(
        AttemptCause.DESTINATION,
        is_closed=True,
        now=now,
        began_at=began_at,
        failed_at=failed_at,
        succeeded_at=succeeded_at,
        success_began_at=success_began_at,
    )


def test_a_destination_that_never_accepted_anything_pays():
    assert paid() is D
    assert paid(now=0.0, began_at=0.0) is D


def test_an_attempt_longer_than_the_window_has_its_success_meanwhile():
    assert paid(now=200.0, succeeded_at=101.0) is N
    assert paid(now=200.0, succeeded_at=99.0) is D


def test_a_success_that_began_before_the_message_failed_does_not_speak_against_it():
    """It was under way when the outage began."""
    assert paid(failed_at=104.0, succeeded_at=105.0, success_began_at=103.0) is N
    assert paid(failed_at=104.0, succeeded_at=105.0, success_began_at=104.5) is M
