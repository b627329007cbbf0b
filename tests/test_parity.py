"""tests/parity/MATRIX.md has a row for everything that is promised, and what a row names is there."""

import ast
import re
from collections import Counter
from functools import cache

import pytest

from tests.support.databases import ROOT

SECTIONS = {"1.1": 22, "1.2": 10, "1.3": 7, "1.4": 6, "1.5": 14, "1.6": 6, "1.7": 15}
CHECKLIST = {
    "C": 13, "H": 21, "P": 15, "B": 3, "E": 7, "M": 4, "S": 3, "D": 6, "I": 3,
    "N": 21, "K": 10, "Q": 7, "T": 3, "J": 2, "L": 28,
}  # fmt: skip
EXPECTED = [
    *(f"{section}.{number}" for section, count in SECTIONS.items() for number in range(1, count + 1)),
    *(f"{group}{number}" for group, count in CHECKLIST.items() for number in range(1, count + 1)),
]
LATER: set[str] = set()  # what other parts of the project complete
DOCUMENT = ROOT / "tests" / "parity" / "MATRIX.md"


@cache
def rows():
    """(id, what, what shows it) of every row."""
    return re.findall(r"^\| ([\w.]+) \| (.+?) \| (.+) \|$", DOCUMENT.read_text(), re.MULTILINE)


def named_tests(evidence):
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", evidence)


def named_decisions(evidence):
    return re.findall(r"\[decision \d+\]\((../../docs/decisions/[\w.-]+)\)", evidence)


@cache
def functions(path):
    """The tests that pytest collects from a file: functions of the module and methods of its classes."""
    tree = ast.parse((ROOT / path).read_text())
    bodies = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.startswith("Test"))]
    found = [node.name for body in bodies for node in body.body if isinstance(node, ast.FunctionDef)]
    return {name for name in found if name.startswith("test_")}


def missing_of(evidence):
    """What the evidence names and is not there."""
    files = {path for path, _ in named_tests(evidence) if not (ROOT / path).exists()}
    tests = [f"{path}::{name}" for path, name in named_tests(evidence) if path in files or name not in functions(path)]
    return tests + [link for link in named_decisions(evidence) if not (DOCUMENT.parent / link).exists()]


def test_every_promise_has_exactly_one_row():
    assert Counter(promise for promise, _, _ in rows()) == Counter(EXPECTED)


@pytest.mark.parametrize("promise", EXPECTED)
def test_what_a_row_names_is_there(promise):
    [(what, evidence)] = [(what, evidence) for found, what, evidence in rows() if found == promise]
    assert what.endswith(".")
    assert named_tests(evidence) or named_decisions(evidence), "neither a test nor a decision"
    assert missing_of(evidence) == []
    rest = re.sub(r"`[^`]*`|\[decision \d+\]\([^)]*\)|later: [\w -]+|, ", "", evidence)
    assert rest == "", f"{rest!r} is neither a test nor a decision"


def test_only_what_other_parts_complete_is_left_for_later():
    assert {promise for promise, _, evidence in rows() if "later:" in evidence} == LATER


def test_a_missing_test_and_a_missing_decision_are_found():
    assert missing_of("`tests/core/election/test_neli.py::test_missing_own_beats_fence`") == []
    for wrong in ("`tests/core/election/test_neli.py::test_nothing`", "`tests/nowhere.py::test_nothing`"):
        assert missing_of(wrong) == [wrong.strip("`")]
    assert missing_of("[decision 99](../../docs/decisions/0099-nothing.md)") == ["../../docs/decisions/0099-nothing.md"]
