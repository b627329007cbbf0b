"""The matrix of promises names tests and planted bugs that exist, and every planted bug."""

import re

from tests.simulation.graphs.mutations import MUTATIONS
from tests.support.databases import ROOT

TEXT = (ROOT / "tests" / "graphs" / "MATRIX.md").read_text()
ROWS = re.findall(r"^\| (?!promise|---)(.+?) \| (.+) \|$", TEXT, re.MULTILINE)


def test_every_promise_has_a_test_or_a_decision_that_exists():
    assert len(ROWS) > 25
    for promise, shown in ROWS:
        found = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", shown)
        for path, name in found:
            assert f"def {name}(" in (ROOT / path).read_text(), (promise, name)
        decisions = re.findall(r"`(docs/decisions/[\w-]+\.md)`", shown)
        assert all((ROOT / path).exists() for path in decisions), promise
        assert found or decisions or re.search(r"\*[^*]+\*", shown), promise


def test_every_planted_bug_is_named():
    assert {name for _, shown in ROWS for name in re.findall(r"\*([^*]+)\*", shown)} == set(MUTATIONS)
