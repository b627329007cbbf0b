"""Words that others have replaced, refused everywhere but in the records of decisions. See docs/glossary.md."""

import re
from pathlib import Path

import pytest

from tests.support.databases import ROOT
from tests.support.documents import tracked

FORBIDDEN = {
    r"ways? of (?:delivery|harvesting)": "delivery mode",
    r"\w*errands?": "hold action",
    r"wish(?:es|ed)?": "request",
    r"farewell": "clean release",
    r"buri(?:al|ed)s?|bury": "move to the dead letters",
    r"culprits?": "cause, or poison record",
    r"verdicts?": "decision, result or summary",
    r"(?:un)?parked|parks": "held, or rejected",
    r"quarantined?": "poison",
    r"in hand": "in flight",
    r"in good order": "cleanly",
    r"go(?:es)? on by (?:itself|themselves)": "resumes by itself",
    r"classic (?:harvesters?|reapers?|delivery)": "goharvest-compatible",
    r"play(?:s|ed|ing)? (?:a|the|this|that|each|every) faults?": "inject",
    # names of commands, settings, columns and metrics, see decision 111
    r"outbox_(?:audit(?!_log)|purge)": "outbox_verify, or outbox_discard --dead-letters",
    r"(?-i:AUDIT_WINDOW)": "LEDGER_RETENTION",
    r"(?-i:REFUSAL_(?:POLIC\w+|ATTEMPTS))": "REJECTION_POLICY and others",
    r"way_(?:owner|time|seen_s)": "lease_owner and others",
    r"outbox_(?:parked_keys|refused_records_total)": "outbox_held_keys, outbox_rejected_records_total",
}
WHITE = r"\s+(?:#\s+)?"  # also where a line ends within a comment
# An identifier counts as the words that underscores or capitals separate.
PATTERNS = {
    re.compile(
        rf"(?:(?<![A-Za-z])|(?<=[a-z])(?-i:(?=[A-Z])))(?:{old.replace(' ', WHITE)})(?![A-Za-z])", re.IGNORECASE
    ): new
    for old, new in FORBIDDEN.items()
}


def found_in(text):
    """Every forbidden word, with its line and with what to write instead."""
    return [
        (text.count("\n", 0, hit.start()) + 1, hit[0], new)
        for pattern, new in PATTERNS.items()
        for hit in pattern.finditer(text)
    ]


def test_no_word_is_used_that_another_has_replaced():
    texts = [p for p in tracked() if p.parts[:2] != ("docs", "decisions") and ROOT / p != Path(__file__)]
    found = {str(p): found_in((ROOT / p).read_text(errors="ignore")) for p in texts if p.suffix != ".png"}
    assert {path: words for path, words in found.items() if words} == {}


@pytest.mark.parametrize(
    "text",
    ["a way\n# of delivery", "take_errands", "It was parked.", "outbox_purge --all", "in\nhand", "KeysParked"],
)
def test_a_forbidden_word_is_found_wherever_it_stands(text):
    assert found_in(text)


@pytest.mark.parametrize("text", ["sparked", "in handy", "outbox_purged", "OUTBOX_purging"])
def test_other_words_are_let_through(text):
    assert found_in(text) == []
