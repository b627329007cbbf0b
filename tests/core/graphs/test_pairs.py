"""Which messages belong together, and which a function wants."""

import pytest

from outbox.core.graphs.pairs import different_keys, is_wanted, mismatch
from outbox.core.graphs.values import StepFilter
from tests.core.graphs.graphs import fetched


@pytest.mark.parametrize(
    ("first", "second", "differ"), [(b"a", b"a", False), (b"a", b"b", True), (None, b"b", False), (None, None, False)]
)
def test_keys_are_compared_where_both_messages_have_one(first, second, differ):
    assert different_keys((fetched(key=first), fetched("stock", key=second))) is differ


def test_a_mismatch_names_both_positions():
    text = mismatch((fetched("orders", 5, key=b"a"), fetched("stock", 7, partition=2, key=b"\xff")))
    assert "orders[0] offset 5 with the key 'a' and stock[2] offset 7 with the key '\\\\xff'" in text


@pytest.mark.parametrize(
    ("only", "wanted"),
    [
        (StepFilter(), True),
        (StepFilter(topics=frozenset({"orders"})), True),
        (StepFilter(topics=frozenset({"stock"})), False),
        (StepFilter(types=frozenset({"Placed", "Paid"})), True),
        (StepFilter(types=frozenset({"Paid"})), False),
        (StepFilter(topics=frozenset({"stock"}), types=frozenset({"Placed"})), False),
    ],
)
def test_a_filter_of_topics_and_types(only, wanted):
    assert is_wanted(only, (fetched(headers=(("type", b"Old"), ("type", b"Placed"))),)) is wanted


def test_a_message_without_a_type_is_of_none():
    assert not is_wanted(StepFilter(types=frozenset({"Paid"})), (fetched(),))
