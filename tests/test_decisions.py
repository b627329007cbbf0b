"""docs/decisions/README.md lists every decision once, by the title that stands where its text is."""

import re
from collections import Counter
from functools import cache

from tests.support.databases import ROOT
from tests.support.documents import anchors, slug

FOLDER = ROOT / "docs" / "decisions"
INDEX = FOLDER / "README.md"
STATUS = r"accepted|superseded by \d{4}"
BACKWARDS = {  # what the later decision says, and the earlier one
    "supersedes": "superseded by",
    "supersedes a part of": "in part superseded by",
    "extends": "extended by",
    "changes": "changed by",
}
NUMBERS = r"\d{4}(?: and \d{4})*"
RELATIONS = rf"(?:; (?:{'|'.join([*BACKWARDS, *BACKWARDS.values()])}) {NUMBERS})*"


@cache
def rows():
    """(number, title, target, status) of every row."""
    return re.findall(r"^\| (\d{4}) \| \[(.+?)\]\(([^)]+)\) \| (.+) \|$", INDEX.read_text(), re.MULTILINE)


def decisions():
    """Number → (title, target) of every decision that has a text: a file of its own, or a heading in an essay."""
    for path in sorted(FOLDER.glob("*.md")):
        if numbered := re.match(r"(\d{4})-", path.name):
            heading = path.read_text().split("\n", 1)[0]
            yield numbered[1], heading.removeprefix(f"# {int(numbered[1])}. "), path.name
        elif path != INDEX:
            for number, title in re.findall(r"^## (\d{4}): (.+)$", path.read_text(), re.MULTILINE):
                yield number, title, f"{path.name}#{slug(f'{number}: {title}')}"


def test_every_decision_has_one_row_with_its_title_and_place():
    assert [(number, title, target) for number, title, target, _ in rows()] == sorted(decisions())
    assert [number for number, count in Counter(number for number, *_ in rows()).items() if count > 1] == []
    assert INDEX.read_text().count("\n| 0") == len(rows()), "a row that is not read"


def test_every_status_is_one_of_those_explained():
    known = {number for number, *_ in rows()}
    for number, _, target, status in rows():
        essay, is_folded, _ = target.partition("#")
        title = re.match("# (.+)", (FOLDER / essay).read_text())[1]
        folded = re.escape(f", folded into [{title}]({essay})") if is_folded else ""
        assert re.fullmatch(f"(?:{STATUS}){folded}{RELATIONS}", status), (number, status)
        assert set(re.findall(r"\b\d{4}\b", status)) <= known - {number}, (number, status)


def test_relations_are_named_on_both_sides():
    related = {
        (number, verb, other)
        for number, _, _, status in rows()
        for verb, others in re.findall(rf"(?:^|; )([a-z ]+?) ({NUMBERS})", status)
        for other in others.split(" and ")
    }
    for verb, back in BACKWARDS.items():
        assert {(a, b) for a, v, b in related if v == verb} == {(b, a) for a, v, b in related if v == back}, verb


def test_every_essay_is_named_in_the_index():
    essays = {path.name for path in FOLDER.glob("*.md") if not path.name[0].isdigit()} - {INDEX.name}
    assert set(re.findall(r"^- \[.+\]\(([\w-]+\.md)\): ", INDEX.read_text(), re.MULTILINE)) == essays


def test_every_decision_with_a_file_has_its_three_parts():
    for path in FOLDER.glob("[0-9]*.md"):
        missing = {"context", "decision", "consequences"} - anchors(path)
        assert not missing, (path.name, missing)
