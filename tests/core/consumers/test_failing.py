"""When it is the consumer that fails, and not its messages."""

from itertools import product

import pytest

from outbox.core.consumers.failing import HEALTH, KEYLESS, KEYS, Failing, Health, HealthStep
from outbox.core.consumers.values import Partition

ONE, TWO = Partition("orders", 0), Partition("orders", 1)
TABLE = {
    Health.WORKING: {HealthStep.TOO_MANY_FAILED: Health.FAILING},
    Health.FAILING: {HealthStep.HANDLED: Health.WORKING},
}


@pytest.mark.parametrize(("health", "step"), list(product(Health, HealthStep)))
def test_its_health_is_this_table(health, step):
    assert HEALTH.transitions.get((health, step)) is TABLE[health].get(step)


def fail(found, *keys, partition=ONE):
    return [found.failed(partition, key, "no") for key in keys]


def names(count, first=0):
    return [f"k{number}".encode() for number in range(first, first + count)]


def test_messages_of_many_keys_in_a_row_are_the_consumers_fault():
    found = Failing()
    assert fail(found, *names(KEYS)) == [False] * (KEYS - 1) + [True]
    assert (found.is_failing, found.reason) == (True, "no")
    assert fail(found, b"any") == [True]


def test_one_key_may_fail_for_ever():
    found = Failing()
    assert not any(fail(found, *[b"k"] * 1_000))


def test_keys_of_other_partitions_are_others():
    found = Failing()
    fail(found, *names(KEYS // 2))
    assert fail(found, *names(KEYS // 2), partition=TWO)[-1]


def test_messages_without_a_key_count_each():
    found = Failing()
    assert fail(found, *[None] * KEYLESS) == [False] * (KEYLESS - 1) + [True]


def test_a_message_that_is_handled_begins_the_count_anew():
    found = Failing()
    for first in range(0, 100, KEYS - 1):
        assert not any(fail(found, *names(KEYS - 1, first)))
        assert not found.handled()


def test_one_message_that_is_handled_ends_it():
    found = Failing()
    fail(found, *names(KEYS))
    found.probed(100.0, 1.0)
    assert found.handled()
    assert (found.is_failing, found.not_before, found.reason) == (False, float("-inf"), "")
    assert not any(fail(found, *names(KEYS - 1)))


def test_it_is_tried_after_longer_and_longer_pauses():
    found, pauses = Failing(), []
    fail(found, *names(KEYS))
    for _ in range(12):
        found.probed(100.0, 1.0)
        pauses.append(found.not_before - 100.0)
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (1.0, 60.0)


def test_rows_of_its_messages_are_given_back_until_that_is_committed():
    found = Failing()
    found.kept([1])
    fail(found, *names(3))
    found.kept([2, 3])
    fail(found, *names(KEYS))
    found.kept([4])
    assert found.to_give_back == [2, 3]
    found.handled()
    assert found.to_give_back == [2, 3], "nothing was committed yet"
    found.given_back([2])
    assert found.to_give_back == [3]


def test_rows_from_before_a_success_are_not_given_back():
    found = Failing()
    fail(found, *names(3))
    found.kept([2, 3])
    found.handled()
    fail(found, *names(KEYS))
    assert found.to_give_back == []
