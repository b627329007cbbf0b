"""One append: its stages, which stores count, and what is refused before and after the stream."""

from itertools import product

import pytest

from outbox.core.journal.append import APPEND, Append, AppendStage, AppendStep
from outbox.core.journal.fragments import Content, digest, path_of
from outbox.core.journal.values import Cause, Conditions, JournalState, Report, Staged

S, E = AppendStage, AppendStep
ID = "0192e4b1-0000-7000-8000-000000000001"
ZONES = {"a": "east", "b": "west", "c": "west"}
TABLE = {
    S.RESOLVE: {E.RESOLVED: S.CHECK, E.FAILED: S.FAILED},
    S.CHECK: {E.CHECKED: S.OPEN, E.FAILED: S.FAILED},
    S.OPEN: {E.OPENED: S.STREAM, E.FAILED: S.FAILED},
    S.STREAM: {E.SEALS: S.SEAL, E.FAILED: S.FAILED},
    S.SEAL: {E.NEXT: S.STREAM, E.STAGED: S.STAGED, E.FAILED: S.FAILED},
    S.STAGED: {},
    S.FAILED: {},
}


@pytest.mark.parametrize(("stage", "step"), list(product(S, E)))
def test_its_stages_are_this_table(stage, step):
    assert APPEND.transitions.get((stage, step)) is TABLE[stage].get(step)


def test_every_stage_is_reached():
    assert APPEND.unreachable() == set()


def report(*blocks):
    return Report(sum(map(len, blocks)), b"".join(map(digest, blocks)))


def begun(replicas=2, zones=ZONES, conditions=Conditions(), **state):  # noqa: B008
    return Append(ID, JournalState("orders", replicas=replicas, stores=tuple(zones), **state), zones, conditions)


def streaming(replicas=2, zones=ZONES, **state):
    append = begun(replicas, zones, **state)
    assert append.resolved(tuple(zones), {}) is None
    assert append.checked() is None
    append.opened("2026/01/02")
    return append


def sealing(*blocks, replicas=2, **given):
    append = streaming(replicas, **given)
    for block in blocks:
        append.add(block)
    append.seals()
    return append


def staged(append):
    assert append.kept(is_last=True) is None
    return append.staged(is_open=True)


def test_what_every_store_has_is_staged():
    append = sealing(b"ab", b"c")
    for store in "abc":
        assert append.sealed(store, report(b"ab", b"c")) is None
    found = staged(append)
    assert isinstance(found, Staged)
    assert (found.append, found.journal, found.length) == (ID, "orders", 3)
    (fragment,) = found.fragments
    assert fragment.path == path_of("orders", "2026/01/02", ID, 0)
    assert (fragment.replicas, fragment.zones) == (("a", "b", "c"), 2)
    assert fragment.sha256 == digest(b"abc")
    assert fragment.blocks == digest(b"ab") + digest(b"c")


@pytest.mark.parametrize(
    ("replicas", "answering", "is_refused"),
    [
        (1, "a", False),
        (1, "", True),
        (2, "ab", False),
        (2, "bc", True),  # both in one zone
        (2, "a", True),
        (3, "abc", False),
        (3, "ab", True),
    ],
)
def test_it_begins_with_enough_stores_in_enough_zones(replicas, answering, is_refused):
    append = begun(replicas)
    refusal = append.resolved(tuple(answering), {"c": "connection refused"})
    assert (refusal is not None) is is_refused
    assert append.stage.state is (S.FAILED if is_refused else S.CHECK)
    if refusal:
        assert refusal.cause is Cause.TOO_FEW_STORES
        assert f"needs {replicas} replicas" in refusal.text
        assert ("c: connection refused." in refusal.text) is ("c" not in answering)


@pytest.mark.parametrize(
    ("state", "conditions", "cause"),
    [
        ({"suspect": "A store is ahead."}, Conditions(), Cause.SUSPECT),
        ({"is_read_only": True}, Conditions(), Cause.READ_ONLY),
        ({"head": 7}, Conditions(offset=6), Cause.WRONG_OFFSET),
        ({"registers": {"author": "b"}}, Conditions(check={"author": "a"}), Cause.REGISTERS),
    ],
)
def test_a_hopeless_append_ends_before_its_stream(state, conditions, cause):
    append = begun(conditions=conditions, **state)
    append.resolved(tuple(ZONES), {})
    refusal = append.checked()
    assert refusal is not None
    assert (refusal.cause, append.stage.state) == (cause, S.FAILED)


def test_a_store_that_fails_leaves_while_enough_remain():
    append = sealing(b"abc")
    assert append.drop("c", "no space left") is None
    assert append.drop("c", "again") is None
    assert append.writing == ("a", "b")
    assert append.dropped == {"c": "no space left"}
    for store in "ab":
        append.sealed(store, report(b"abc"))
    assert append.sealed("c", report(b"abc")) is None, "too late"
    assert staged(append).fragments[0].replicas == ("a", "b")


def test_the_append_fails_when_too_few_remain():
    append = streaming()
    assert append.drop("b", "slow") is None
    refusal = append.drop("c", "slow")
    assert refusal is not None
    assert refusal.cause is Cause.TOO_FEW_STORES
    assert append.stage.state is S.FAILED


def test_two_stores_of_one_zone_do_not_suffice():
    append = sealing(b"abc")
    refusal = append.drop("a", "away")
    assert refusal is not None
    assert "needs 2 replicas in 2 zones" in refusal.text


@pytest.mark.parametrize("wrong", [report(b"ab"), report(b"abd"), report(b"abcd"), Report(3, b"")])
def test_a_store_that_has_something_else_does_not_count(wrong):
    append = sealing(b"abc", replicas=1)
    append.sealed("a", wrong)
    assert append.dropped.keys() == {"a"}
    append.sealed("b", report(b"abc"))
    assert append.awaited == ("c",)
    append.sealed("c", report(b"abc"))
    assert staged(append).fragments[0].replicas == ("b", "c")


def test_a_long_append_becomes_several_fragments_on_the_stores_that_remain():
    append = streaming(fragment_bytes=2)
    append.add(b"ab")
    assert append.is_full
    first = append.path
    append.seals()
    append.drop("c", "away")
    for store in "ab":
        append.sealed(store, report(b"ab"))
    assert append.kept(is_last=False) is None
    assert append.path != first
    append.add(b"c")
    assert not append.is_full
    append.seals()
    for store in "ab":
        append.sealed(store, report(b"c"))
    found = staged(append)
    assert [(one.part, one.length, one.replicas) for one in found.fragments] == [(0, 2, ("a", "b")), (1, 1, ("a", "b"))]


def test_an_append_whose_stage_was_removed_is_not_staged():
    append = sealing(b"abc")
    for store in "abc":
        append.sealed(store, report(b"abc"))
    assert append.kept(is_last=True) is None
    refusal = append.staged(is_open=False)
    assert not isinstance(refusal, Staged)
    assert (refusal.cause, append.stage.state) == (Cause.EXPIRED, S.FAILED)


def test_its_hashes_are_those_of_its_bytes():
    content = Content()
    for block in (b"ab", b"c"):
        content.add(block)
    assert (content.sha256, content.report) == (digest(b"abc"), report(b"ab", b"c"))


def test_an_append_has_content():
    append = streaming()
    refusal = append.empty()
    assert (refusal.cause, append.stage.state) == (Cause.NO_CONTENT, S.FAILED)
    assert "has no content" in refusal.text


def test_to_give_up_is_safe_at_any_time():
    append = streaming()
    append.fail()
    append.fail()
    assert append.stage.state is S.FAILED
