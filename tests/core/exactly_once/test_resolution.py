"""What an operator's decision may do, as values."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from outbox.core.exactly_once.decisions import AskElection, NothingToDo, StateRow, Stop, Why
from outbox.core.exactly_once.ledger import Entry, LedgerEntryError
from outbox.core.exactly_once.resolution import (
    UNREADABLE,
    Case,
    Listed,
    Resolution,
    case_of,
    copied,
    entries_after,
    is_in_use,
    is_sent_as_a_whole,
    last_proper,
    objection,
)
from outbox.core.times import time_of

HERE, THERE = UUID(int=1), UUID(int=2)
NOON = datetime(2026, 1, 1, tzinfo=UTC)
PURGE, RESEND = Resolution(delete_sent=True), Resolution(resend=True)


def entry(batch: int, *, lane: int = 0, database: UUID = HERE) -> Entry:
    return Entry(lane, batch, HERE, database, (1, 2, 3), 77, NOON)


def case(reason: Why | str, purged: int = 3, last: Entry | None = None) -> Case:
    return Case(0, HERE, purged, last, reason, "")


@pytest.mark.parametrize(
    ("count", "digest", "newest", "expected"),
    [
        (3, 77, 5, True),
        (3, 78, 5, False),
        (3, 77, 4, False),  # that is not the batch, whatever the server's clock has done
        (3, 78, 4, False),
        (3, 77, 6, None),  # one is younger: perhaps only one of them
        (2, 77, 5, None),
        (0, 0, None, None),
    ],
)
def test_a_whole_batch_is_judged_by_its_digest_and_newest_time(
    count: int, digest: int, newest: int | None, expected: bool | None
) -> None:
    assert is_sent_as_a_whole(replace(entry(1), newest=5), count, digest, newest) is expected


@pytest.mark.parametrize(
    ("count", "digest", "age_s", "expected"), [(3, 77, 0, True), (3, 78, 0, False), (3, 77, -1, None), (2, 77, 0, None)]
)
def test_without_a_newest_time_the_reading_of_the_batch_bounds_it(
    count: int, digest: int, age_s: int, expected: bool | None
) -> None:
    newest = time_of(NOON - timedelta(seconds=age_s))
    assert is_sent_as_a_whole(entry(1), count, digest, newest) is expected


def test_entries_after_m_are_of_this_lane_and_database_and_each_number_once() -> None:
    found = [entry(7), entry(6, lane=1), entry(6), entry(6), entry(5, database=THERE), entry(4), entry(3), entry(8)]
    assert [e.batch for e in entries_after(3, 0, HERE, found)] == [7, 6, 4]
    assert [e.batch for e in entries_after(0, 0, THERE, found)] == [5]


def test_what_is_missing_is_counted() -> None:
    listed = tuple(Listed(entry(batch), 2, 1) for batch in (9, 8))
    found = replace(case(Why.DATABASE_WENT_BACK, 3, entry(9)), listed=listed)
    assert (found.missing, found.records, found.found, found.sent) == (4, 6, 4, 2)
    assert case(Why.LEDGER_WENT_BACK).missing == 0


@pytest.mark.parametrize(
    ("found", "decision", "text"),
    [
        (case(Why.DATABASE_WENT_BACK, 3, entry(9)), PURGE, ""),
        (
            case(Why.DATABASE_WENT_BACK, 3, entry(9)),
            Resolution(resend=True, adopt=True),
            "was written for this database",
        ),
        (case(Why.LEDGER_WENT_BACK), PURGE, "Use --resend"),
        (case(Why.LEDGER_WENT_BACK), RESEND, ""),
        (case(Why.FOREIGN_DATABASE, 3, entry(9, database=THERE)), PURGE, "add --adopt-ledger"),
        (case(Why.FOREIGN_DATABASE, 30, entry(9, database=THERE)), Resolution(delete_sent=True, adopt=True), ""),
        (case(Why.OTHER_LANE, 3, entry(3)), RESEND, ""),
        (case(Why.OTHER_LANE, 3), RESEND, "Delete the ledger topic"),
        (case(UNREADABLE, 0), RESEND, "Delete the ledger topic"),
    ],
)
def test_a_decision_must_fit(found: Case, decision: Resolution, text: str) -> None:
    objected = objection(found, decision)
    assert text in objected
    assert bool(text) == bool(objected)


BAD, WORSE = LedgerEntryError("not JSON"), LedgerEntryError("no number")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], (None, None)),
        ([entry(3), entry(2)], (entry(3), None)),
        ([entry(3, lane=1)], (entry(3, lane=1), None)),
        ([BAD, entry(3)], (entry(3), "not JSON")),
        ([BAD, entry(4, lane=1), WORSE, entry(5, database=THERE), entry(3)], (entry(3), "not JSON")),
        ([WORSE, BAD], (None, "no number")),
    ],
)
def test_behind_what_is_no_entry_the_last_one_of_the_lane_counts(
    found: list[Entry | LedgerEntryError], expected: tuple[Entry | None, str | None]
) -> None:
    assert last_proper(found, 0, HERE) == expected


@pytest.mark.parametrize(
    ("lane", "resize_to", "expected"), [(1, None, True), (2, None, False), (2, 2, True), (2, 4, True)]
)
def test_while_the_lanes_are_closed_each_is_judged_like_one_in_use(
    lane: int, resize_to: int | None, expected: bool
) -> None:
    assert is_in_use(lane, StateRow(2, resize_to)) is expected


def test_a_case_has_the_reason_for_which_an_owner_stops() -> None:
    stopped = case_of(0, HERE, 3, entry(5), Stop(Why.DATABASE_WENT_BACK, "why"))
    assert (stopped.reason, stopped.text, stopped.last) == (Why.DATABASE_WENT_BACK, "why", entry(5))
    for found, text in ((AskElection(), "working"), (NothingToDo(3), "agree"), (None, "agree")):
        made = case_of(0, HERE, 3, entry(3), found)
        assert made.reason is None
        assert text in made.text


@pytest.mark.parametrize(
    ("last", "change", "expected"),
    [
        (entry(4), 0, 0),
        (entry(4), 2, 2),
        (replace(entry(4), change=5), 2, 5),
        (replace(entry(4, database=THERE), change=5), 2, 2),
        (replace(entry(4), ids=()), 0, 1),
        (replace(entry(4), ids=()), 3, 3),
    ],
)
def test_the_copy_of_an_entry_knows_of_every_change_of_the_count(last: Entry, change: int, expected: int) -> None:
    made = copied(case(UNREADABLE, 3, last), THERE, change)
    assert made == replace(last, database=HERE, owner=THERE, change=expected)
