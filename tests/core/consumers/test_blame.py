"""Every kind of failure, for every kind of attempt, has the action of this table."""

from itertools import product
from typing import get_args

import pytest

from outbox.core.consumers import blame as b
from outbox.core.consumers.blame import BatchAttempt, blame

LOADING, LOCKING = BatchAttempt(0, is_locking=True), BatchAttempt(5, is_locking=True)
MANY, ALONE = BatchAttempt(5), BatchAttempt(1)
ATTEMPTS = {"loading": LOADING, "locking": LOCKING, "many": MANY, "alone": ALONE}

OF_MESSAGE = {
    "loading": b.StopConsumer,
    "locking": b.StopConsumer,
    "many": b.FindMessage,
    "alone": b.MessageFailed,
}
OF_STATEMENT = {**OF_MESSAGE, "loading": b.Wait, "locking": b.Wait}
ROWS = [
    (b.FunctionRaised("no"), OF_MESSAGE),
    (b.Postponed("no", 60.0), OF_MESSAGE),
    (b.Untrusted("no"), OF_MESSAGE),
    (b.Disconnected("no"), b.Wait),
    (b.KafkaUnavailable("no"), b.Wait),
    (b.Ending("no"), b.EndProcess),
    (b.Replaced("no"), b.StopConsumer),
    (b.Alike("no", "do"), b.StopConsumer),
    (b.StatementRefused("40P01", "no"), b.Smaller),
    (b.StatementRefused("40001", "no"), b.Smaller),
    (
        b.StatementRefused("55P03", "no"),
        {**dict.fromkeys(ATTEMPTS, b.Smaller), "locking": b.Unblock, "loading": b.Unblock},
    ),
    (b.StatementRefused("57014", "no"), OF_STATEMENT),
    *(
        (b.StatementRefused(state, "no"), b.Wait)
        for state in ("57P01", "57P03", "53300", "08006", "25P03", "25006", "28P01")
    ),
    *((b.StatementRefused(state, "no", is_elsewhere=True), OF_STATEMENT) for state in ("57P01", "08006", "23505")),
    (b.StatementRefused("40P01", "no", is_elsewhere=True), b.Smaller),
    *((b.StatementRefused(state, "no"), OF_STATEMENT) for state in ("23505", "42P01", "22001")),
]


@pytest.mark.parametrize(("failure", "name"), [(row[0], name) for row, name in product(ROWS, ATTEMPTS)], ids=str)
def test_each_failure_has_its_action(failure, name):
    expected = dict(ROWS)[failure]
    if isinstance(expected, dict):
        expected = expected[name]
    action = blame(ATTEMPTS[name], failure)
    assert type(action) is expected
    assert "no" in action.reason


def test_no_kind_of_failure_and_no_action_is_left_out():
    assert {type(failure) for failure, _ in ROWS} == set(get_args(b.Failure))
    found = {type(blame(attempt, failure)) for failure, _ in ROWS for attempt in ATTEMPTS.values()}
    assert found == set(get_args(b.Action))


def test_a_statement_that_this_process_has_cancelled_is_no_failure_of_a_message():
    assert blame(BatchAttempt(1, is_cancelled=True), b.StatementRefused("57014", "no")) == b.Wait("57014: no")


def test_whoever_ended_the_transaction_is_told_what_may_be_left_of_it():
    action = blame(MANY, b.Replaced("xid"))
    assert isinstance(action, b.StopConsumer)
    assert "COMMIT" in action.remedy


def test_a_postponed_message_says_until_when():
    failed = blame(ALONE, b.Postponed("no", 60.0, retry_s=5.0))
    assert failed == b.MessageFailed("no", until_s=60.0, retry_s=5.0)
