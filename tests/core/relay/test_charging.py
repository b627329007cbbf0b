"""Who pays for an attempt that failed."""

import pytest

from outbox.core.relay.charging import WINDOW_S, Payer, payer
from outbox.core.relay.results import AttemptCause

BEGAN, NOW = 100.0, 110.0
MEANWHILE, RECENTLY, LONG_AGO = 105.0, NOW - WINDOW_S + 1, NOW - WINDOW_S - 1
M, D, N = Payer.MESSAGE, Payer.DESTINATION, Payer.NEITHER
TABLE = [
    # cause, the circuit is closed, another was accepted, not the last attempt, the last attempt
    (AttemptCause.DESTINATION, True, MEANWHILE, M, M),
    (AttemptCause.DESTINATION, True, RECENTLY, M, N),
    (AttemptCause.DESTINATION, True, LONG_AGO, D, D),
    (AttemptCause.DESTINATION, False, MEANWHILE, D, D),
    (AttemptCause.DESTINATION, False, LONG_AGO, D, D),
    (AttemptCause.MESSAGE, True, MEANWHILE, M, M),
    (AttemptCause.MESSAGE, True, LONG_AGO, M, M),
    (AttemptCause.MESSAGE, False, MEANWHILE, D, D),
    (AttemptCause.MESSAGE, False, LONG_AGO, D, D),
    (AttemptCause.REJECTED, True, LONG_AGO, M, M),
    (AttemptCause.REJECTED, False, LONG_AGO, M, M),
    (AttemptCause.GONE, True, LONG_AGO, N, N),
    (AttemptCause.GONE, False, MEANWHILE, N, N),
    (AttemptCause.FORBIDDEN, True, MEANWHILE, N, N),
    (AttemptCause.FORBIDDEN, False, LONG_AGO, N, N),
]


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize(("cause", "is_closed", "succeeded_at", "usual", "last"), TABLE)
def test_an_attempt_is_charged_by_this_table(cause, is_closed, succeeded_at, usual, last, is_last):
    found = payer(cause, is_closed=is_closed, now=NOW, began_at=BEGAN, succeeded_at=succeeded_at, is_last=is_last)
    assert found is (last if is_last else usual)


def test_a_success_before_the_attempt_is_not_one_meanwhile():
    found = payer(AttemptCause.DESTINATION, is_closed=True, now=NOW, began_at=BEGAN, succeeded_at=BEGAN, is_last=True)
    assert found is N


def test_a_destination_that_never_accepted_anything_pays():
    found = payer(
        AttemptCause.DESTINATION, is_closed=True, now=0.0, began_at=0.0, succeeded_at=float("-inf"), is_last=False
    )
    assert found is D
