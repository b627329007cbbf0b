"""A page is read, the one before it is sent, and what was sent before that is purged, all at once."""

import pytest

from outbox.core.exactly_once.looks import LOOK, HoldsLook, Look, Looked
from outbox.core.exactly_once.round import (
    BACKLOG,
    PAGE,
    PURGING,
    READER,
    AfterDivision,
    News,
    PageState,
    Purges,
    Purging,
    ReaderState,
    ReaderStep,
    Reads,
    Round,
    Sends,
    after_division,
)
from outbox.core.region import UnexpectedEvent


@pytest.mark.parametrize("table", [READER, PAGE, PURGING, BACKLOG, LOOK], ids=lambda table: table.name)
def test_every_state_is_reached(table):
    assert not table.unreachable()


@pytest.mark.parametrize(
    ("table", "events", "expected"),
    [
        (
            PAGE,
            Sends,  # HANDED_OVER_FULL, HANDED_OVER_LAST, ENDED; None: cannot happen
            {
                PageState.NONE: [PageState.MORE, PageState.LAST, None],
                PageState.MORE: [None, None, PageState.NONE],
                PageState.LAST: [None, None, PageState.NONE],
            },
        ),
        (
            PURGING,
            Purges,  # PAGE_ENDED, LAST_PAGE_ENDED, READ, SUBMITTED, SETTLED
            {
                Purging.NONE: [Purging.DUE, Purging.HELD_BACK, None, None, Purging.NONE],
                Purging.HELD_BACK: [None, None, Purging.DUE, None, Purging.HELD_BACK],
                Purging.DUE: [None, None, None, Purging.UNDER_WAY, None],
                Purging.UNDER_WAY: [Purging.DUE, Purging.HELD_BACK, None, None, Purging.NONE],
            },
        ),
        (
            LOOK,
            Looked,  # ASKED, LOADED, FAILED, JOINED
            {
                Look.STALE: [Look.ASKED, Look.STALE, Look.STALE, Look.STALE],
                Look.ASKED: [None, Look.FRESH, Look.STALE, Look.STALE],
                Look.FRESH: [Look.ASKED, None, None, Look.STALE],
            },
        ),
    ],
    ids=["page", "purge", "holds"],
)
def test_small_regions_follow_their_tables(table, events, expected):
    for state, row in expected.items():
        for event, after in zip(events, row, strict=True):
            if after is None:
                with pytest.raises(UnexpectedEvent):
                    table.after(state, event)
            else:
                assert table.after(state, event) is after


@pytest.mark.parametrize(
    ("state", "after"),
    [
        (ReaderState.WAITING, {"WAITS": "WAITING", "LOADS": "LOADING", "READS": "READING"}),
        (ReaderState.LOADING, {"SLOW": "LOADING", "LOADED": "WAITING", "FAILED": "PAUSING"}),
        (ReaderState.READING, {"SLOW": "READING", "RETURNED": "DEALING", "FAILED": "PAUSING"}),
        (ReaderState.DEALING, {"RESTS": "PAUSING", "DEALT": "WAITING", "FLUSHES": "FLUSHING"}),
        (ReaderState.FLUSHING, {"SLOW": "FLUSHING", "FLUSHED": "WAITING", "FAILED": "PAUSING"}),
        (ReaderState.PAUSING, {"GOES_ON": "WAITING"}),
    ],
)
def test_the_reader_follows_its_table_and_may_be_ended_anywhere(state, after):
    found = {event.name: READER.after(state, event).name for event in Reads if READER.expects(state, event)}
    assert found == {**after, "ENDS": "ENDING"}
    assert {READER.after(ReaderState.ENDING, event) for event in Reads if event not in (Reads.ENDS, Reads.ENDED)} == {
        ReaderState.ENDING
    }


def test_a_full_page_is_sent_while_the_next_is_read_and_purged_as_soon_as_it_has_ended():
    made: Round[str] = Round()
    made.handed_over(2, is_full=True)
    assert made.next_step(may_read=True, needs_holds=False) is ReaderStep.READ
    made.on(Reads.READS)
    made.committed("a")
    made.share_ended()
    assert (made.due(), made.is_page_sent) == ((), False)
    made.committed("b")
    made.share_ended()
    assert (made.due(), made.is_page_sent) == (["a", "b"], True)
    assert made.reader.state is ReaderState.READING, "the purge waits for no read"
    made.on(Reads.RETURNED)
    made.handed_over(1, is_full=True)
    made.on(Reads.DEALT)
    made.on(Reads.READS)
    assert [made.reader.state, made.page.state, made.purging.state] == [
        ReaderState.READING,
        PageState.MORE,
        Purging.UNDER_WAY,
    ]


@pytest.mark.parametrize("event", ["WAITS", "LOADS", "RETURNED", "FAILED", "SLOW", "ENDS"])
def test_the_purge_of_a_last_page_is_held_back_for_the_next_read_and_nothing_longer(event):
    made: Round[str] = Round()
    made.handed_over(1, is_full=False)
    assert made.next_step(may_read=True, needs_holds=False) is ReaderStep.WAIT
    made.committed("a")
    made.share_ended()
    assert made.due() == ()
    assert made.next_step(may_read=True, needs_holds=False) is ReaderStep.READ
    if event in ("RETURNED", "FAILED", "SLOW"):
        made.on(Reads.READS)
        assert made.due() == ()
    made.on(Reads[event])
    assert made.due() == ["a"]
    assert made.due() == ()
    made.settled()
    assert made.purging.state is Purging.NONE


def test_a_page_of_which_nothing_was_committed_has_no_purge():
    made: Round[str] = Round()
    made.handed_over(1, is_full=True)
    made.share_ended()
    assert (made.due(), made.purging.state) == ((), Purging.NONE)
    made.handed_over(0, is_full=False)
    assert made.is_page_sent


@pytest.mark.parametrize(
    ("given", "step"),
    [
        ({"may_read": False, "needs_holds": True}, ReaderStep.WAIT),
        ({"may_read": True, "needs_holds": True}, ReaderStep.LOAD),
        ({"may_read": True, "needs_holds": False}, ReaderStep.READ),
    ],
)
def test_nothing_is_read_for_no_lane_or_before_its_holds_are_known(given, step):
    made: Round[str] = Round()
    assert made.next_step(**given) is step
    made.tell(News.ELSEWHERE)
    assert made.next_step(**given) is ReaderStep.RECONNECT
    assert made.next_step(**given) is step
    made.on(Reads.ENDS)
    assert made.next_step(**given) is ReaderStep.END


def test_what_is_told_during_a_read_is_for_the_next_one():
    made: Round[str] = Round()
    made.tell(News.JOINED)
    assert made.must_read_soon
    assert made.take_news()
    assert not made.must_read_soon
    made.tell(News.WOKEN)
    assert made.must_read_soon
    assert not made.take_news()


def test_holds_are_looked_at_once_a_second_and_less_often_where_that_takes_long():
    look = HoldsLook()
    assert look.is_due(0.0)
    look.asked()
    look.loaded(0.0, 0.5)
    assert not look.is_due(5.4)
    assert look.is_due(5.5)
    look.asked()
    look.joined()
    look.loaded(6.0, 6.0)
    assert look.is_due(6.0), "a lane that joined meanwhile was not asked for"


@pytest.mark.parametrize(
    ("has_shares", "is_full", "has_advanced", "then"),
    [
        (True, True, True, AfterDivision.HAND_OVER),
        (True, False, False, AfterDivision.HAND_OVER),
        (False, True, True, AfterDivision.READ_ON),
        (False, True, False, AfterDivision.REST),
        (False, False, True, AfterDivision.REST),
        (False, False, False, AfterDivision.REST),
    ],
)
def test_a_page_that_is_all_held_is_followed_by_the_next_one_if_there_is_more(has_shares, is_full, has_advanced, then):
    assert after_division(has_shares=has_shares, is_full=is_full, has_advanced=has_advanced) is then


def test_after_a_full_page_more_waits_than_is_sent():
    made: Round[str] = Round()
    found = [made.is_behind]
    for is_full in (True, True, False, False):
        made.divided(is_full=is_full)
        found.append(made.is_behind)
    assert found == [False, True, True, False, False]
