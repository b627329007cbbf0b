from datetime import UTC, datetime
from uuid import UUID

import pytest

from outbox.core.exactly_once import purging
from outbox.core.exactly_once.decisions import LookUpRows, MoveOnly, Purged, PurgeEntry, Rows, Stop, Why
from outbox.core.exactly_once.ledger import Entry
from outbox.core.exactly_once.purging import BatchPurge, Flushed
from outbox.core.holds.values import HoldActions

DATABASE = UUID(int=1)


def entry(lane=0, batch=7):
    return Entry(lane, batch, UUID(int=2), DATABASE, (1, 2), 5, datetime(2026, 1, 1, tzinfo=UTC))


def purge(lane=0, **given):
    return BatchPurge(entry(lane), 9, **given)


@pytest.mark.parametrize(("attempt", "pause_s"), [(0, 0.1), (1, 0.2), (4, 1.6), (5, 2.0), (8, 2.0), (5_000, 2.0)])
def test_pauses_grow_up_to_two_seconds(attempt, pause_s):
    assert purging.pause_s(attempt) == pytest.approx(pause_s)


def test_only_what_was_read_of_a_server_is_purged_there():
    here, there = purge(server="a"), purge(1, server="b")
    assert purging.of_server([here, there], "a") == [here]
    assert purging.of_server([here, there], "c") == []


def test_the_batches_of_other_lanes_are_purged_without_one_whose_rows_survive():
    assert purging.without_lane([purge(0), purge(1), purge(2)], 1) == [purge(0), purge(2)]


@pytest.mark.parametrize(
    ("purges", "expected"),
    [
        ([purge()], True),
        ([], False),
        ([purge(), purge(1)], False),
        ([purge(hold_actions=HoldActions(confirmed=(3,)))], False),
    ],
)
def test_one_batch_without_anything_beside_it_needs_one_statement(purges, expected):
    assert purging.is_plain(purges) is expected


def test_what_moved_nothing_is_settled_unless_its_lane_is_stopped():
    purges, stops = [purge(lane) for lane in range(4)], {2: "why"}
    found = purging.to_settle(purges, [purges[1]], stops)
    assert next(found) is purges[0]
    stops[3] = "stopped meanwhile"
    assert list(found) == []


@pytest.mark.parametrize(
    ("purged", "rows", "expected"),
    [
        (7, None, Purged(7)),
        (9, None, Purged(7)),
        (6, None, LookUpRows(entry())),
        (6, Rows.ALL, PurgeEntry(entry())),
        (6, Rows.NONE, MoveOnly(entry())),
        (6, Rows.SOME, Why.ROWS_INCOMPLETE),
        (6, Rows.DIFFERENT, Why.ROWS_DIFFERENT),
        (5, None, Why.DATABASE_WENT_BACK),
        (5, Rows.ALL, Why.DATABASE_WENT_BACK),
    ],
)
def test_what_is_done_about_a_batch_whose_purge_moved_nothing(purged, rows, expected):
    found = purging.settle_step(entry(), purged, rows)
    if isinstance(expected, Why):
        assert isinstance(found, Stop)
        assert found.why is expected
    else:
        assert found == expected


def test_rows_that_are_gone_are_not_deleted_again():
    assert purging.ids_of(PurgeEntry(entry())) == (1, 2)
    assert purging.ids_of(MoveOnly(entry())) == ()


@pytest.mark.parametrize(
    ("attempt", "moved", "expected"), [(0, [purge()], True), (0, [], False), (1, [purge()], False)]
)
def test_only_the_first_attempt_proves_something_and_only_if_it_moved_a_number(attempt, moved, expected):
    assert purging.proves_flush(attempt, moved) is expected


def test_only_a_purge_that_followed_the_read_can_flush_it():
    assert purging.may_flush(2.0, 2.0)
    assert not purging.may_flush(1.9, 2.0)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Flushed(1.0, "a"), True),
        (Flushed(2.0, "a"), True),
        (Flushed(2.1, "a"), False),
        (Flushed(1.0, "b"), False),
        (None, False),
    ],
)
def test_only_over_a_connection_to_that_server_that_stood_before_the_read_has_a_purge_flushed_it(found, expected):
    assert purging.has_flushed(found, "a", 2.0) is expected
