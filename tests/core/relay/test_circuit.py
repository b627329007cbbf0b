"""Whether a destination may be sent to."""

from itertools import product

import pytest

from outbox.core.region import UnexpectedEvent
from outbox.core.relay.circuit import (
    ACCESS,
    DISABLE_AFTER_S,
    PAUSE_MAX_S,
    Access,
    AccessEvent,
    DestinationRow,
    disabled,
    enabled,
    failed,
    pause_s,
    probed,
    returned,
    succeeded,
)

TABLE = {
    Access.CLOSED: {AccessEvent.FAILED: Access.OPEN, AccessEvent.DISABLED: Access.DISABLED},
    Access.OPEN: {
        AccessEvent.SUCCEEDED: Access.CLOSED,
        AccessEvent.PROBED: Access.PROBING,
        AccessEvent.DISABLED: Access.DISABLED,
    },
    Access.PROBING: {
        AccessEvent.SUCCEEDED: Access.CLOSED,
        AccessEvent.FAILED: Access.OPEN,
        AccessEvent.RETURNED: Access.OPEN,
        AccessEvent.PROBED: Access.PROBING,
        AccessEvent.DISABLED: Access.DISABLED,
    },
    Access.DISABLED: {AccessEvent.ENABLED: Access.CLOSED},
}


@pytest.mark.parametrize(("access", "event"), list(product(Access, AccessEvent)))
def test_access_is_this_table(access, event):
    assert ACCESS.transitions.get((access, event)) is TABLE[access].get(event)


def test_a_change_is_of_the_version_that_was_read():
    change = failed(DestinationRow(version=7), 0.0, "refused")
    assert (change.expected, change.after.version, change.event) == (7, 8, AccessEvent.FAILED)


def test_the_first_failure_opens_it_for_a_second_at_most():
    assert failed(DestinationRow(), 0.0, "refused").after == DestinationRow(1, Access.OPEN, 0.5, 1, 0.0, "refused")
    assert failed(DestinationRow(), 0.999, "refused").after.wait_s < 1.0


def test_pauses_double_up_to_a_limit():
    longest = [pause_s(failures, 1.0) for failures in range(1, 10)]
    assert longest == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert pause_s(10_000, 1.0) == PAUSE_MAX_S


def test_a_receiver_may_ask_for_a_longer_pause():
    assert failed(DestinationRow(), 0.0, "HTTP status 429", retry_after_s=90.0).after.wait_s == 90.0


def test_a_probe_that_failed_waits_longer():
    before = DestinationRow(3, Access.PROBING, 60.0, 3, 100.0, "refused")
    assert failed(before, 1.0, "timeout").after == DestinationRow(4, Access.OPEN, 8.0, 4, 100.0, "timeout")


def test_days_of_nothing_but_failures_disable_it():
    before = DestinationRow(3, Access.PROBING, 60.0, 900, DISABLE_AFTER_S, "refused")
    after = failed(before, 1.0, "refused").after
    assert after.access is Access.DISABLED
    assert after.reason == "no delivery was accepted for 5 days; the last error: refused"
    younger = DestinationRow(3, Access.PROBING, 60.0, 900, DISABLE_AFTER_S - 1, "refused")
    assert failed(younger, 1.0, "refused").after.access is Access.OPEN


def test_one_success_forgets_all_failures():
    for access in (Access.OPEN, Access.PROBING):
        assert succeeded(DestinationRow(3, access, 60.0, 9, 100.0, "refused")).after == DestinationRow(4)


def test_a_probe_lasts_as_long_as_a_lease_and_postgresql_compares_the_end_of_the_pause():
    change = probed(DestinationRow(3, Access.OPEN, 0.0, 2, 5.0, "refused"), lease_s=60.0)
    assert change.after == DestinationRow(4, Access.PROBING, 60.0, 2, 5.0, "refused")
    assert change.needs_end_of_wait
    assert not failed(DestinationRow(), 0.0, "refused").needs_end_of_wait


def test_a_probe_without_a_delivery_is_free_again_at_once():
    after = returned(DestinationRow(4, Access.PROBING, 60.0, 2, 5.0, "refused")).after
    assert after == DestinationRow(5, Access.OPEN, 0.0, 2, 5.0, "refused")


def test_a_disabled_destination_waits_for_an_operator():
    before = disabled(DestinationRow(1), "HTTP status 410").after
    assert before == DestinationRow(2, Access.DISABLED, reason="HTTP status 410")
    with pytest.raises(UnexpectedEvent):
        succeeded(before)
    assert enabled(before).after == DestinationRow(3)
