"""tests/faults/MATRIX.md has a row for each fault that exactly-once delivery and consumers must survive; what a row
names exists."""

import ast
import re
from collections import Counter
from functools import cache

import pytest

from tests.support.databases import ROOT

SECTIONS = {"P": 9, "K": 17, "D": 13, "F": 10, "B": 6, "E": 11, "O": 9, "C": 18}
EXPECTED = [f"{section}{number}" for section, count in SECTIONS.items() for number in range(1, count + 1)]
DOCUMENT = ROOT / "tests" / "faults" / "MATRIX.md"


@cache
def rows():
    """id → what happens, short form, long form, control."""
    found = re.findall(r"^\| ([A-Z]\d+) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", DOCUMENT.read_text(), re.MULTILINE)
    return [(id_, tuple(rest)) for id_, *rest in found]


@cache
def forms_of(path):
    """name → whether it is left to the long runs."""
    tree = ast.parse((ROOT / path).read_text())
    whole = any("mark.torture" in ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return {f.name: whole or "pytest.mark.torture" in map(ast.unparse, f.decorator_list) for f in functions}


def named(cell):
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", cell)


def missing_of(cell, *, is_long=None):
    """What a cell names and is not there, or is not of its form."""
    found = []
    for path, name in named(cell):
        known = forms_of(path) if (ROOT / path).exists() else {}
        if name not in known or (is_long is not None and known[name] != is_long):
            found.append(f"{path}::{name}")
    return found


def test_every_fault_has_exactly_one_row():
    assert Counter(id_ for id_, _ in rows()) == Counter(EXPECTED)


@pytest.mark.parametrize("fault", EXPECTED)
def test_what_a_row_names_is_there(fault):
    [(what, short, long, control)] = [cells for id_, cells in rows() if id_ == fault]
    assert what.endswith(".")
    assert named(short)
    assert missing_of(short, is_long=False) == []
    assert long == "none" or (named(long) and missing_of(long, is_long=True) == [])
    assert missing_of(control) == []
    assert named(control) or control.startswith("none: "), "neither a control nor a reason why there is none"
    for cell in (short, long.removeprefix("none"), re.sub("^none: .*", "", control)):
        assert re.sub(r"`[^`]*`|, ", "", cell) == ""


def test_a_wrong_name_and_a_wrong_form_are_found():
    long, short = "test_killed_two_hundred_times", "test_a_few_mixed_faults"
    torture, frames = "tests/faults/exactly_once/test_torture.py", "tests/faults/exactly_once/test_frames.py"
    assert missing_of(f"`{frames}::{short}`", is_long=False) == []
    assert missing_of(f"`{torture}::{long}`", is_long=True) == []
    for wrong, is_long in ((f"{torture}::{long}", False), (f"{frames}::{short}", True), (f"{frames}::test_no", False)):
        assert missing_of(f"`{wrong}`", is_long=is_long) == [wrong]
