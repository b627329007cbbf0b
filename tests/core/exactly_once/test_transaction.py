from functools import partial
from itertools import product

import pytest

from outbox.core.exactly_once.transaction import (
    COMMIT,
    PROBING,
    Commit,
    Probe,
    Probing,
    Producer,
    Step,
    is_announced,
    judge,
    objection,
    tells_apart,
    turn_s,
    without_large,
)
from outbox.core.holds.book import Holds
from outbox.core.region import Region, UnexpectedEvent
from outbox.core.sizes import Sizes


def commit(*steps):
    region = Region(COMMIT)
    for step in steps:
        region.on(step)
    return region


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], Commit.NONE),
        ([Step.BEGIN], Commit.OPEN),
        ([Step.BEGIN, Step.DROP], Commit.NONE),
        ([Step.BEGIN, Step.COMMIT], Commit.IN_DOUBT),
        ([Step.BEGIN, Step.COMMIT, Step.DROP], Commit.IN_DOUBT),
        ([Step.BEGIN, Step.COMMIT, Step.DROP, Step.SETTLED], Commit.NONE),
        ([Step.BEGIN, Step.COMMIT, Step.DELIVERED], Commit.DONE),
        ([Step.BEGIN, Step.COMMIT, Step.DELIVERED, Step.BEGIN], Commit.OPEN),
        ([Step.BEGIN, Step.COMMIT, Step.DELIVERED, Step.DROP], Commit.NONE),
    ],
)
def test_how_far_a_transaction_is(steps, expected):
    assert commit(*steps).state is expected


def test_only_the_ledger_ends_a_doubt():
    doubt = commit(Step.BEGIN, Step.COMMIT)
    for step in (Step.BEGIN, Step.COMMIT):
        with pytest.raises(UnexpectedEvent):
            doubt.on(step)
    doubt.on(Step.DROP)
    with pytest.raises(UnexpectedEvent):
        doubt.on(Step.BEGIN)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], Probing.WHOLE),
        ([Probe.BEGUN, Probe.ACKNOWLEDGED, Probe.DELIVERED], Probing.WHOLE),
        ([Probe.BEGUN, Probe.WANTED], Probing.PROBING),
        ([Probe.WANTED, Probe.BEGUN, Probe.ACKNOWLEDGED], Probing.ALL_ACKNOWLEDGED),
        ([Probe.WANTED, Probe.BEGUN, Probe.ACKNOWLEDGED, Probe.BEGUN], Probing.PROBING),
        ([Probe.WANTED, Probe.BEGUN, Probe.ACKNOWLEDGED, Probe.WANTED], Probing.ALL_ACKNOWLEDGED),
        ([Probe.WANTED, Probe.BEGUN, Probe.ACKNOWLEDGED, Probe.DELIVERED], Probing.WHOLE),
        ([Probe.WANTED, Probe.BEGUN, Probe.ACKNOWLEDGED, Probe.FOUND_NOTHING_YET], Probing.PROBING),
        ([Probe.BEGUN, Probe.ACKNOWLEDGED, Probe.FOUND_NOTHING_YET], Probing.PROBING),
    ],
)
def test_whether_records_are_told_apart(events, expected):
    region = Region(PROBING)
    for event in events:
        region.on(event)
    assert region.state is expected


def test_nothing_is_delivered_before_every_record_that_is_told_apart_is_acknowledged():
    for event in (Probe.DELIVERED, Probe.FOUND_NOTHING_YET):
        assert not PROBING.expects(Probing.PROBING, event)


@pytest.mark.parametrize("table", [COMMIT, PROBING])
def test_every_state_can_be_reached(table):
    assert table.unreachable() == set()


@pytest.mark.parametrize(
    ("trouble", "repeated", "expected"),
    [
        ("", "", Producer.GOOD),
        ("FAIL", "", Producer.TROUBLED),
        ("", "2 EndTxn", Producer.REPEATED),
        ("FAIL", "2 EndTxn", Producer.REPEATED),
    ],
)
def test_a_producer_is_judged_by_its_log_and_by_its_statistics(trouble, repeated, expected):
    assert judge(trouble, repeated) is expected


def test_a_batch_is_committed_only_when_every_guard_holds():
    for stopped, flushed, taken in product((False, True), repeat=3):
        text = objection(is_stopped=stopped, is_flushed=flushed, holds_lease=partial(bool, taken))
        assert bool(text) is (stopped or not flushed or not taken)


@pytest.mark.parametrize(
    ("probing", "is_apart", "is_marked"),
    [
        (Probing.WHOLE, False, True),
        (Probing.PROBING, True, False),
        (Probing.ALL_ACKNOWLEDGED, True, False),
    ],
)
def test_an_entry_is_announced_behind_records_that_are_not_told_apart(probing, is_apart, is_marked):
    assert tells_apart(probing) is is_apart
    assert is_announced(probing, has_records=True) is is_marked
    assert not is_announced(probing, has_records=False)


@pytest.mark.parametrize(
    ("has_records", "is_ending", "expected"), [(True, False, 0.25), (True, True, 0), (False, False, 0)]
)
def test_a_lane_waits_for_its_turn_only_if_it_has_records_and_time(has_records, is_ending, expected):
    assert turn_s(has_records=has_records, is_ending=is_ending) == expected


def row(id_, key, size, topic="t"):
    return (id_, topic, key, "x" * size, None, None, None, 0)


def test_of_each_key_the_first_record_that_is_too_large_is_left_out_with_what_follows():
    sizes = Sizes(is_compressed=False)
    sizes.limited("t", 300)
    rows = [
        row(1, "a", 10),
        row(2, "a", 400),
        row(3, "b", 10),
        row(4, "a", 10),
        row(5, "", 400),
        row(6, "", 10),
        row(7, "a", 400, "other"),
    ]
    kept, large = without_large(rows, sizes, Holds())
    assert [[one[0] for one in some] for some in (kept, large)] == [[1, 3, 6, 7], [2, 5]]


def test_a_record_that_is_tried_is_sent_however_large_it_is():
    sizes, holds = Sizes(is_compressed=False), Holds()
    sizes.limited("t", 300)
    holds.refused(row(2, "a", 400), "MSG_SIZE_TOO_LARGE: too large", 0.0)
    holds.release_due(1e9)
    assert without_large([row(2, "a", 400)], sizes, holds) == ([row(2, "a", 400)], [])
