"""What an append may ask of its journal."""

import pytest

from outbox.core.journal.registers import changed, is_match, refusal
from outbox.core.journal.values import Conditions, JournalState


@pytest.mark.parametrize(
    ("registers", "check", "matches"),
    [
        ({}, {"author": "a"}, True),  # nobody has claimed it
        ({}, {"author": None}, True),
        ({"author": "a"}, {}, True),
        ({"author": "a"}, {"author": "a"}, True),
        ({"author": "a"}, {"author": "b"}, False),
        ({"author": "a"}, {"author": None}, False),
        ({"author": "a"}, {"other": None}, True),
        ({"author": "a"}, {"other": "x"}, False),
        ({"author": "a", "at": "7"}, {"author": "a", "at": "8"}, False),
    ],
)
def test_registers_are_compared(registers, check, matches):
    assert is_match(registers, check) is matches
    found = refusal(JournalState("j", registers=registers), Conditions(check=check))
    assert (found is None) is matches


@pytest.mark.parametrize(
    ("before", "conditions", "after"),
    [
        ({}, Conditions(set={"a": "1"}), {"a": "1"}),
        ({"a": "1", "b": "2"}, Conditions(drop=("a",)), {"b": "2"}),
        ({"a": "1"}, Conditions(set={"a": "2"}, drop=("a",)), {"a": "2"}),
        ({"a": "1"}, Conditions(drop=("x",)), {"a": "1"}),
    ],
)
def test_registers_lose_what_is_dropped_and_then_get_what_is_set(before, conditions, after):
    assert changed(before, conditions) == after


def test_a_refusal_names_what_was_seen_and_what_was_asked():
    found = refusal(JournalState("j", head=5, registers={"a": "1"}), Conditions(check={"a": "2"}))
    assert found is not None
    assert "{'a': '1'}" in found.text
    assert "{'a': '2'}" in found.text
    found = refusal(JournalState("j", head=5), Conditions(offset=4))
    assert found is not None
    assert "offset 4" in found.text
    assert "head is 5" in found.text
