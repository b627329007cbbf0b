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
    judge,
    objection,
)
from outbox.core.region import Region, UnexpectedEvent


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
