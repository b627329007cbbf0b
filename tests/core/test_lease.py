"""When a lease on the table is repeated, and until when it is relied on."""

import pytest

from outbox.core.lease import LEASE, Lease, LeaseEvent, Times

KEPT, NOT_KEPT = Lease.KEPT, Lease.NOT_KEPT


@pytest.mark.parametrize(
    ("before", "event", "after"),
    [
        (NOT_KEPT, LeaseEvent.PREPARED, KEPT),
        (KEPT, LeaseEvent.PREPARED, KEPT),
        (KEPT, LeaseEvent.RELEASED, NOT_KEPT),
        (NOT_KEPT, LeaseEvent.RELEASED, NOT_KEPT),
    ],
)
def test_a_lease_is_kept_from_when_all_is_prepared_until_it_is_given_back(before, event, after):
    assert LEASE.after(before, event) is after
    assert not LEASE.unreachable()


def test_a_lease_is_relied_on_for_three_quarters_of_its_time_from_when_it_was_asked_for():
    times = Times(8.0, 2.0)
    assert not times.is_trusted(0.0)
    times.taken(10.0)
    assert times.is_trusted(15.9)
    assert not times.is_trusted(16.0)


def test_only_a_lease_that_was_had_is_lost():
    times = Times(8.0, 2.0)
    assert not times.is_lost(0.0), "it is about to be taken"
    times.taken(0.0)
    times.prepared()
    assert not times.is_lost(5.9)
    assert times.is_lost(6.0)
    times.released()
    assert not times.is_lost(6.0)


def test_a_table_without_a_row_to_be_leased_is_free_until_the_next_heartbeat_tells():
    times = Times(8.0, 2.0)
    times.taken(0.0, exists=False)
    assert times.is_trusted(1e9)
    times.taken(2.0, exists=True)
    assert not times.is_trusted(8.0)


@pytest.mark.parametrize(("patience_s", "beat_s"), [(10.0, 2.0), (3.0, 1.0)])
def test_a_heartbeat_is_due_three_times_before_others_may_take_the_lease(patience_s, beat_s):
    times = Times(patience_s, 2.0)
    assert times.beat_s == beat_s
    assert not times.is_due(0.0)
    times.prepared()
    assert times.is_due(0.0), "the first shows which lanes there are"
    times.sent(0.0)
    assert not times.is_due(0.0)
    assert times.is_due(beat_s)
    times.taken(0.5)
    assert times.is_due(beat_s), "that lease showed no lanes"
    times.taken(0.5, shows_lanes=True)
    assert not times.is_due(beat_s)
    times.released()
    assert not times.is_due(1e9)
