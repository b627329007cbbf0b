"""docs/protocol.md agrees with the code."""

import importlib
import re

import pytest

from outbox.runtime.locks import LEAVES, LOCKS, THREADS
from tests.simulation.exactly_once.mutations import MUTATIONS
from tests.support import protocol
from tests.support.databases import ROOT

TEXT = protocol.DOCUMENT.read_text()


@pytest.fixture(scope="module")
def seen():
    return protocol.seen_by_the_simulation()


def test_what_is_made_from_the_code_is_up_to_date(seen):
    expected = protocol.with_parts(TEXT, protocol.made(seen))
    assert expected == TEXT, "run: python -m tests.support.protocol"


def test_every_state_of_every_table_can_be_reached():
    assert {table.name: table.unreachable() for _, table in protocol.tables() if table.unreachable()} == {}


def test_every_thread_of_a_harvester_is_listed():
    named = {"outbox-election-N" if name.startswith("outbox-election") else name for name in protocol.thread_names()}
    assert named | {"outbox-election-N"} == set(THREADS)


def test_each_of_the_ten_rules_has_a_place_and_a_test():
    rows = re.findall(r"^\| (\d+) \| (.*?) \| (.*) \|$", TEXT, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, 11))
    for _, places, tests in rows:
        for place in re.findall(r"`(outbox\.[\w.]+)`", places):
            assert resolved(place), place
        for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests):
            assert f"def {name}(" in (ROOT / path).read_text(), name
        assert set(re.findall(r"\*([^*]+)\*", tests)) <= set(MUTATIONS)
        assert places
        assert tests


def resolved(place):
    parts = place.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ImportError(place)


# ---- locks


def test_nothing_is_waited_for_under_the_locks_that_are_taken_last(seen):
    assert not {wait for wait in seen.waits if wait[0] in LEAVES}
    assert {lock for lock, _ in seen.taken} <= set(LOCKS)
    assert ("round", "outbox-reader") in seen.taken
