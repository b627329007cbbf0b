"""The questions of a takeover: in which order they are asked, and which answers end it."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from uuid import UUID

import pytest

from outbox.core.exactly_once import decisions as v
from outbox.core.exactly_once.ledger import Entry
from outbox.core.exactly_once.takeover import (
    Ask,
    CloseForgotten,
    GiveUp,
    Known,
    Last,
    Table,
    has_ended,
    next_step,
    was_settled,
)

HERE = UUID(int=1)
OPEN = v.StateRow(3, resize_no=2)
CLOSING = v.StateRow(3, resize_to=5, resize_no=3)
NOON = datetime(2026, 1, 1, tzinfo=UTC)


def entry(batch=4, lane=0, change=2):
    return Entry(lane, batch, UUID(int=9), HERE, (1, 2), 77, NOON, change)


def asked(known, answers):
    """The steps of one takeover, until it has its decision."""
    steps = []
    while True:
        step = next_step(known)
        steps.append(step)
        if step is Ask.TABLE:
            known = replace(known, table=answers["table"])
        elif step is Ask.LEDGER:
            known = replace(known, last=Last(answers["entry"]))
        elif step is Ask.MARK:
            known = replace(known, marked=answers["marked"])
        elif step is Ask.PURGED:
            known = replace(known, purged_again=answers.get("again", answers["table"].purged))
        elif isinstance(step, CloseForgotten):
            known = replace(known, closed_for=step.change)
        elif isinstance(step, v.LookUpRows):
            known = replace(known, rows=answers["rows"])
        else:
            return steps


def answers(state=OPEN, purged=4, entry=None, marked=2, **more):
    return {"table": Table(HERE, state, purged), "entry": entry, "marked": marked, **more}


FIRST = entry(lane=1)
CASES = {
    "both sides agree in lane 0": (Known(0), answers(entry=entry()), [Ask.LEDGER, Ask.PURGED, v.NothingToDo(4)]),
    "another lane asks lane 0's mark": (
        Known(1),
        answers(entry=FIRST),
        [Ask.LEDGER, Ask.MARK, Ask.PURGED, v.NothingToDo(4)],
    ),
    "a batch of unknown purge is looked up": (
        Known(0),
        answers(purged=3, entry=entry(), rows=v.Rows.ALL),
        [Ask.LEDGER, Ask.PURGED, v.LookUpRows(entry()), v.PurgeEntry(entry())],
    ),
    "another owner is at work": (
        Known(0),
        answers(entry=entry(), again=5),
        [Ask.LEDGER, Ask.PURGED, v.AskElection()],
    ),
    "a closed lane asks no ledger": (Known(1), answers(CLOSING), [v.Closed(5)]),
    "an idle lane asks no ledger": (Known(3), answers(), [v.Idle(3)]),
    "a change that the row forgets is marked": (
        Known(1),
        answers(entry=FIRST, marked=3),
        [Ask.LEDGER, Ask.MARK, Ask.PURGED, v.Closed(3)],
    ),
    "a change that nobody marked closes the lanes": (
        Known(1),
        answers(entry=entry(lane=1, change=3)),
        [Ask.LEDGER, Ask.MARK, CloseForgotten(3), Ask.PURGED, v.Closed(3)],
    ),
    "lane 0 leaves what the row forgets to its change of the count": (
        Known(0),
        answers(entry=entry(change=3)),
        [Ask.LEDGER, Ask.PURGED, v.Closed(3)],
    ),
    "a lane is settled while closed and asks no mark": (
        Known(1, CLOSING),
        answers(CLOSING, entry=entry(lane=1, change=9)),
        [Ask.LEDGER, Ask.PURGED, v.NothingToDo(4)],
    ),
    "nobody settles for a change that has ended": (Known(1, CLOSING), answers(OPEN), [GiveUp()]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_questions_of_a_takeover(name):
    known, given, expected = CASES[name]
    assert asked(known, given) == [Ask.TABLE, *expected]


def test_every_takeover_ends_and_is_judged_by_both_looks_at_m():
    """After whatever answers: each question is asked once at most, and m is read before and after the ledger."""
    states = [v.StateRow(count, to, None, no) for count, to, no in product((1, 2), (None, 2), (1, 2))]
    entries = [None, *(entry(batch, lane, change) for batch, lane, change in product((3, 4, 5), (0, 1), (1, 2, 3)))]
    for lane, state, settling, last, marked, again in product(
        (0, 1), states, (None, CLOSING, states[-1]), entries, (0, 2, 3), (4, 5)
    ):
        steps = asked(Known(lane, settling), answers(state, 4, last, marked, again=again, rows=v.Rows.NONE))
        assert len({str(step) for step in steps}) == len(steps)
        places = [steps.index(ask) for ask in (Ask.TABLE, Ask.LEDGER, Ask.PURGED) if ask in steps]
        assert places == sorted(places)
        if isinstance(steps[-1], v.NothingToDo | v.MoveOnly):
            assert {Ask.TABLE, Ask.LEDGER, Ask.PURGED} <= set(steps)
            assert again == 4
            assert settling is not None or not v.forgets_change(
                state, max(marked if lane else 0, v.change_of(last, HERE))
            )


@pytest.mark.parametrize(
    ("state", "expected"),
    [(CLOSING, False), (OPEN, True), (replace(CLOSING, resize_to=4), True), (replace(CLOSING, resize_no=4), True)],
)
def test_a_change_has_ended_when_the_row_tells_of_another(state, expected):
    assert has_ended(CLOSING, state) is expected


@pytest.mark.parametrize(
    ("lane", "state", "change", "expected"),
    [(3, OPEN, 1, True), (3, OPEN, 2, False), (2, OPEN, 1, False), (3, CLOSING, 1, False)],
)
def test_a_lane_without_a_share_was_settled_by_the_change_that_took_it(lane, state, change, expected):
    assert was_settled(lane, state, change) is expected
