"""What `NotYet` takes."""

from datetime import timedelta

import pytest

import outbox


def test_it_says_why_until_when_and_when_again():
    found = outbox.NotYet("the order has not arrived", until_s=60, retry_s=0)
    assert (str(found), found.until_s, found.retry_s) == ("the order has not arrived", 60, 0)
    assert (outbox.NotYet().until_s, outbox.NotYet().retry_s) == (3600.0, None)


@pytest.mark.parametrize("wrong", [None, "60", timedelta(seconds=1), float("nan"), float("inf"), -1, 1e12])
def test_a_wrong_number_is_an_error_of_the_function(wrong):
    with pytest.raises(ValueError, match="no number of seconds"):
        outbox.NotYet(until_s=wrong)
    if wrong is not None:
        with pytest.raises(ValueError, match="no number of seconds"):
            outbox.NotYet(retry_s=wrong)
