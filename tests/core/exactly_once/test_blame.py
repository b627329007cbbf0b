"""Every kind of failure, for every state of probing and every number of suspects, has the actions of this table."""

from dataclasses import replace
from itertools import product
from typing import get_args

import pytest

from outbox.core import faults
from outbox.core.exactly_once import blame as b
from outbox.core.exactly_once.blame import Attempt, Dropped, Raised, Unacknowledged, Undelivered, Weighed, blame
from outbox.core.exactly_once.transaction import PROBING, Probing
from outbox.core.faults import Kind

WHOLE, TOLD, ACKNOWLEDGED = Probing.WHOLE, Probing.PROBING, Probing.ALL_ACKNOWLEDGED
PROBE, RENEW = b.ProbeNext(), b.Renew()
DENIED = b.LedgerDenied(
    "Kafka rejected the entry for the ledger topic 'ledger': TOPIC_AUTHORIZATION_FAILED: no. "
    "Allow the user WRITE and DESCRIBE on it."
)
SUSPECTS = (0, 1, 2)

ONE_OF = {
    Kind.NONE: "NO_ERROR",
    Kind.OUTAGE: "NETWORK_EXCEPTION",
    Kind.UNFORESEEN: "UNKNOWN",
    Kind.RECORD: "_INVALID_ARG",
    Kind.BATCH: "POLICY_VIOLATION",
    Kind.BYSTANDER: "_INVALID_DIFFERENT_RECORD",
    Kind.TOPIC: "TOPIC_AUTHORIZATION_FAILED",
    Kind.DENIED: "SASL_AUTHENTICATION_FAILED",
    Kind.FENCE: "_FENCED",
    Kind.PRODUCER: "_STATE",
    Kind.GROUP: "ILLEGAL_GENERATION",
    Kind.FOREIGN: "_READ_ONLY",
}
TOO_LARGE, TOLD_APART, OVERDUE, CLOCK = "MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "_MSG_TIMED_OUT", "INVALID_TIMESTAMP"


def batch(count, topics="t"):
    return [(id_, topics[id_ % len(topics)]) for id_ in range(count)]


def attempt(count=3, probing=WHOLE, reports=(), topics="t", **given):
    return Attempt(batch(count, topics), probing, [(at, name, "no") for at, name in reports], ledger="ledger", **given)


def outage(name, **given):
    return [b.Outage(f"{name}: no", **given)]


def held(name, at=0):
    return [PROBE, b.HoldRecord(at, f"{name}: no", name in faults.TOO_LARGE, name == "INVALID_RECORD"), RENEW]


def topic_held(name, at=0, topic="t"):
    return b.HoldTopic(at, f"topic {topic!r}: {name}: no")


def searched(name, at=SUSPECTS):
    return [PROBE, b.Search(at, name), RENEW]


# What the client has raised: by kind, state of probing, and number of records of which none has a report.
RAISED = {
    **{(kind, probing, count): outage(ONE_OF[kind])
       for kind in (Kind.NONE, Kind.OUTAGE, Kind.DENIED) for probing in Probing for count in (0, 1, 3)},
    **{(kind, probing, count): [PROBE, *outage(ONE_OF[kind])]
       for kind in (Kind.UNFORESEEN, Kind.BYSTANDER, Kind.PRODUCER, Kind.GROUP, Kind.FOREIGN)
       for probing in Probing for count in (0, 1, 3)},
    **{(Kind.FENCE, probing, count): [b.LostToOther("_FENCED: no")] for probing in Probing for count in (0, 1, 3)},
    **{(kind, probing, count): actions
       for kind in (Kind.RECORD, Kind.BATCH) for probing in Probing
       for count, actions in ((0, searched(ONE_OF[kind], ())), (1, held(ONE_OF[kind])), (3, searched(ONE_OF[kind])))},
    (Kind.TOPIC, WHOLE, 0): [DENIED],
    (Kind.TOPIC, WHOLE, 1): [PROBE, RENEW],
    (Kind.TOPIC, WHOLE, 3): [PROBE, RENEW],
    (Kind.TOPIC, TOLD, 0): [DENIED],
    (Kind.TOPIC, TOLD, 1): [PROBE, topic_held(ONE_OF[Kind.TOPIC]), RENEW],
    (Kind.TOPIC, TOLD, 3): [PROBE, topic_held(ONE_OF[Kind.TOPIC]), RENEW],
    **{(Kind.TOPIC, ACKNOWLEDGED, count): [DENIED] for count in (0, 1, 3)},
}  # fmt: skip


def test_the_table_has_every_kind_in_every_state():
    assert RAISED.keys() == set(product(Kind, Probing, (0, 1, 3)))
    assert all(faults.kind_of(name) is kind for kind, name in ONE_OF.items())


@pytest.mark.parametrize("case", RAISED, ids=str)
def test_what_the_client_raises_is_blamed_as_the_table_says(case):
    kind, probing, count = case
    assert blame(attempt(count, probing), Raised(ONE_OF[kind], "no")) == RAISED[case]


# What a probing attempt was told of its records: (place, name) of each that failed, and the client's cause.
REPORTED = [
    ([(1, "NETWORK_EXCEPTION")], None, [b.Outage("Kafka did not accept 1 records, e.g. NETWORK_EXCEPTION: no")]),
    (
        [(1, "NETWORK_EXCEPTION"), (0, OVERDUE)],
        None,
        [b.Outage("Kafka did not accept 2 records, e.g. NETWORK_EXCEPTION: no", is_too_slow=True)],
    ),
    ([(1, "_PURGE_QUEUE")], "POLICY_VIOLATION", searched("POLICY_VIOLATION")),
    ([(1, "_PURGE_QUEUE")], "_FENCED", [b.Outage("Kafka did not accept 1 records, e.g. _PURGE_QUEUE: no")]),
    ([(1, "_PURGE_QUEUE")], "TOPIC_AUTHORIZATION_FAILED", [PROBE, topic_held("TOPIC_AUTHORIZATION_FAILED"), RENEW]),
    ([(1, "POLICY_VIOLATION")], None, held("POLICY_VIOLATION", 1)),
    ([(1, "POLICY_VIOLATION"), (0, "_PURGE_QUEUE")], "_INVALID_ARG", held("POLICY_VIOLATION", 1)),
    ([(2, "POLICY_VIOLATION"), (0, "POLICY_VIOLATION")], None, searched("POLICY_VIOLATION", (0, 2))),
    ([(1, TOO_LARGE)], None, held(TOO_LARGE, 1)),
    ([(2, TOO_LARGE), (1, TOO_LARGE)], None, [b.Weigh((1, 2))]),
    ([(1, TOLD_APART)], "POLICY_VIOLATION", held(TOLD_APART, 1)),
    (
        [(1, TOLD_APART), (2, TOLD_APART)],
        None,
        [PROBE, b.HoldLikely((1, 2), "INVALID_RECORD: no"), RENEW],
    ),
    ([(1, TOLD_APART), (2, TOLD_APART)], "POLICY_VIOLATION", searched("POLICY_VIOLATION", (1, 2))),
    ([(1, CLOCK), (0, "POLICY_VIOLATION")], None, [PROBE, topic_held(CLOCK, 1), RENEW]),
    ([(2, CLOCK), (1, CLOCK)], None, [PROBE, topic_held(CLOCK, 1), RENEW]),
]


@pytest.mark.parametrize(("reports", "cause", "expected"), REPORTED)
def test_what_is_reported_of_records_is_blamed_as_the_table_says(reports, cause, expected):
    failure = Undelivered(Raised(cause, "no") if cause else None)
    assert blame(attempt(3, TOLD, reports), failure) == expected


def test_each_topic_that_is_denied_is_held_by_its_first_record():
    reports = [(at, "TOPIC_AUTHORIZATION_FAILED") for at in (3, 2, 1)]
    expected = [
        PROBE,
        topic_held("TOPIC_AUTHORIZATION_FAILED", 1, "u"),
        topic_held("TOPIC_AUTHORIZATION_FAILED", 2, "t"),
        RENEW,
    ]
    assert blame(attempt(4, TOLD, reports, topics="tu"), Undelivered()) == expected


def test_a_denied_topic_among_several_is_searched_for():
    denied = Raised("TOPIC_AUTHORIZATION_FAILED", "no")
    assert blame(attempt(3, TOLD, topics="tu"), denied) == searched("TOPIC_AUTHORIZATION_FAILED")


def test_reports_narrow_what_the_client_raises():
    reports = [(2, "POLICY_VIOLATION"), (0, "_PURGE_QUEUE")]
    assert blame(attempt(3, TOLD, reports), Raised("INVALID_RECORD", "no")) == held("INVALID_RECORD", 2)


@pytest.mark.parametrize(
    ("probing", "count", "reports", "expected"),
    [
        (WHOLE, 3, (), [PROBE, RENEW]),
        (WHOLE, 1, (), held(TOLD_APART)),
        (TOLD, 3, (), searched(TOLD_APART)),
        (TOLD, 3, ((1, TOLD_APART), (2, TOLD_APART)), [PROBE, b.HoldLikely((1, 2), "INVALID_RECORD: no"), RENEW]),
    ],
)
def test_records_that_brokers_name_are_held_together(probing, count, reports, expected):
    assert blame(attempt(count, probing, reports), Raised(TOLD_APART, "no")) == expected


SIZED = [
    (Weighed((0, 2), 1000), None, b.HoldLikely((0, 2), "MSG_SIZE_TOO_LARGE: no")),
    (Weighed((), 1000), None, b.SendLess(1000)),
    (Weighed((), 1000), 2000, b.SendLess(1000)),
    (Weighed((), 1000), 1000, b.Search(SUSPECTS, TOO_LARGE)),
    (Weighed((), None), None, b.Search(SUSPECTS, TOO_LARGE)),
]


@pytest.mark.parametrize(("weighed", "request_bytes", "expected"), SIZED)
@pytest.mark.parametrize("probing", Probing)
def test_what_is_too_large_is_weighed_first(weighed, request_bytes, expected, probing):
    asked = attempt(3, probing, request_bytes=request_bytes)
    error = Raised(TOO_LARGE, "no")
    assert blame(asked, error) == [b.Weigh(SUSPECTS)]
    assert blame(replace(asked, weighed=weighed), error) == [PROBE, expected, RENEW]


def test_what_is_late_makes_pages_smaller_unless_the_lane_ends():
    for is_ending in (False, True):
        asked = attempt(is_ending=is_ending)
        assert blame(asked, Raised(OVERDUE, "no")) == outage(OVERDUE, is_too_slow=not is_ending)
        assert blame(asked, Unacknowledged("late")) == [b.Outage("late", is_too_slow=not is_ending)]
        assert blame(asked, Dropped("not flushed")) == [b.Outage("not flushed")]


def test_the_ledger_is_denied_with_the_remedy_of_its_error():
    (found,) = blame(attempt(3, ACKNOWLEDGED), Raised(CLOCK, "no"))
    assert found.reason.startswith(
        "Kafka rejected the entry for the ledger topic 'ledger': INVALID_TIMESTAMP: no. Set this host's clock"
    )


def test_every_error_of_every_attempt_has_an_answer():
    """It ends with how the lane goes on, and nothing is held for an error that is not a refusal."""
    for name, probing, count, ending in product((*faults.KINDS, "ERR_142?"), Probing, (0, 1, 3), (False, True)):
        asked = attempt(count, probing, is_ending=ending)
        failures = [(asked, Raised(name, "no"))]
        if count and probing is TOLD:
            reported = replace(asked, reports=[(0, name, "no")])
            failures += [(reported, Undelivered(cause)) for cause in (None, Raised(name, "no"))]
        for one, failure in failures:
            actions = blame(one, failure)
            assert isinstance(actions[-1], b.Last)
            assert not any(isinstance(action, b.Last) for action in actions[:-1])
            if not faults.is_rejection(name):
                assert all(isinstance(action, b.ProbeNext | b.Outage | b.LostToOther) for action in actions)


def test_no_action_is_without_a_case():
    shown = {type(action) for actions in RAISED.values() for action in actions}
    shown |= {type(action) for *_, actions in REPORTED for action in actions} | {type(action) for *_, action in SIZED}
    assert shown == set(get_args(b.Action))


def test_every_state_of_probing_can_be_reached():
    assert PROBING.unreachable() == set()
