"""What journals expect of PostgreSQL, asked of the real one and of the simulated one."""

from __future__ import annotations

from typing import Any

from outbox.core.journal.chain import chained, genesis
from outbox.core.journal.fragments import Content, path_of
from outbox.core.journal.values import Cause, Conditions, Fragment, Staged

FREE = Conditions()


def staged(side: Any, *contents: bytes, replicas: tuple[str, ...] = ("a", "b")) -> Staged:
    append = side.new_id()
    day = side.table.open(append, side.journal, replicas)
    fragments = []
    for part, content in enumerate(contents):
        hashes = Content()
        hashes.add(content)
        path, zones = path_of(side.journal, day, append, part), len(replicas)
        fragments.append(Fragment(part, path, hashes.length, hashes.sha256, hashes.report.blocks, replicas, zones))
    return Staged(append, side.journal, tuple(fragments))


def committed(side: Any, *contents: bytes, conditions: Conditions = FREE, **given: Any) -> Staged:
    one = staged(side, *contents, **given)
    with side.session() as session:
        assert session.place(one, conditions) == len(contents)
        session.commit()
    return one


def an_append_is_placed_at_commit(side: Any) -> None:
    one = staged(side, b"abc", b"d")
    with side.session() as session:
        assert session.place(one, FREE) == 2
        assert side.table.at(side.journal, 0) == (None, 0)
        assert side.table.placed(one.append) == []
        session.commit()
    two = committed(side, b"ef")
    first, second = side.table.placed(one.append)
    assert (first.begin, first.end, second.begin, second.end) == (0, 3, 3, 4)
    assert first.chain == chained(genesis(side.journal), 0, 3, one.fragments[0].sha256)
    assert second.chain == chained(first.chain, 3, 4, one.fragments[1].sha256)
    assert first.fragment == one.fragments[0]
    (third,) = side.table.placed(two.append)
    assert side.table.at(side.journal, 4) == (third, 6)
    assert side.table.at(side.journal, 5) == (third, 6)
    assert side.table.at(side.journal, 6) == (None, 6)
    state = side.table.state(side.journal)
    assert (state.head, state.chain) == (6, third.chain)
    assert not side.table.extend(one.append)


def what_is_rolled_back_leaves_its_stage(side: Any) -> None:
    one = staged(side, b"abc")
    with side.session() as session:
        session.place(one, FREE)
        session.rollback()
    assert side.table.extend(one.append)
    assert side.table.at(side.journal, 0) == (None, 0)


def an_append_is_placed_once(side: Any) -> None:
    one = committed(side, b"abc")
    with side.session() as session:
        assert session.place(one, FREE) == 0
        session.commit()
    assert side.table.at(side.journal, 3) == (None, 3)


def an_expired_stage_is_not_placed(side: Any) -> None:
    one = staged(side, b"abc")
    assert side.table.expire(3600.0, []) is None
    assert side.table.expire(-1.0, [one.append]) is None
    assert side.table.expire(-1.0, []).append == one.append
    assert side.table.expire(3600.0, []).append == one.append, "it stays expired"
    assert not side.table.extend(one.append)
    with side.session() as session:
        assert session.place(one, FREE) is None
        session.rollback()
    side.table.forget(one.append)
    assert side.table.expire(-1.0, []) is None


def a_stage_in_use_does_not_expire(side: Any) -> None:
    one = staged(side, b"abc")
    with side.session() as session:
        session.place(one, FREE)
        assert side.table.expire(-1.0, []) is None
        session.commit()
    assert len(side.table.placed(one.append)) == 1


def registers_and_offsets_are_checked_at_commit(side: Any) -> None:
    committed(side, b"a", conditions=Conditions(check={"x": "free"}, set={"x": "1", "y": "1"}))
    assert side.table.state(side.journal).registers == {"x": "1", "y": "1"}
    for conditions, cause in (
        (Conditions(check={"x": "2"}), Cause.REGISTERS),
        (Conditions(check={"x": None}), Cause.REGISTERS),
        (Conditions(check={"z": "1"}), Cause.REGISTERS),
        (Conditions(offset=0), Cause.WRONG_OFFSET),
    ):
        one = staged(side, b"b")
        with side.session() as session:
            session.place(one, conditions)
            assert session.refused() is cause
        assert side.table.placed(one.append) == []
        assert side.table.extend(one.append), "the caller may try again"
    committed(side, b"c", conditions=Conditions(check={"z": None, "x": "1"}, drop=("y", "x"), set={"x": "3"}, offset=1))
    assert side.table.state(side.journal).registers == {"x": "3"}


def replicas_are_counted_at_commit(side: Any) -> None:
    one = staged(side, b"abc", replicas=("a",))
    with side.session() as session:
        session.place(one, FREE)
        assert session.refused() is Cause.TOO_FEW_STORES


def the_keeper_finds_what_it_has_to_do(side: Any) -> None:
    one, two = committed(side, b"abc"), committed(side, b"de")
    found = side.table.unindexed(10)
    assert [(journal, placed.begin) for journal, placed in found] == [(side.journal, 0), (side.journal, 3)]
    side.table.indexed(side.journal, [0])
    assert [placed.begin for _, placed in side.table.unindexed(10)] == [3]
    assert side.table.lacking(["a", "b"], 10) == []
    side.table.scrubbed(side.journal, 3, ["b"], 1)
    ((state, lacking),) = side.table.lacking(["a", "b"], 10)
    assert (state.name, lacking.begin, lacking.fragment.replicas) == (side.journal, 3, ("b",))
    assert len(side.table.unscrubbed(-1.0, 10)) == 2
    assert side.table.unscrubbed(3600.0, 10) == []
    open_one = staged(side, b"x")
    unknown = side.new_id()
    assert side.table.known(side.journal, [one.append, two.append, open_one.append, unknown]) == {
        one.append: {0: ("a", "b")},
        two.append: {0: ("b",)},
        open_one.append: None,
    }
    assert sorted(side.table.vacant(side.journal, [0, 1, 3, 5])) == [1, 5]


def what_is_pruned_becomes_an_expired_stage(side: Any) -> None:
    one = committed(side, b"abc", b"d")
    assert side.table.prune(side.journal) == 0
    side.retain(1e-6)
    assert side.table.prune(side.journal) == 1
    stage = side.table.expire(3600.0, [])
    assert (stage.append, sorted(stage.begins), stage.journal) == (one.append, [0, 3], side.journal)
    assert one.fragments[0].path.startswith(f"{stage.journal}/{stage.day}/")
    side.retain(None)
    committed(side, b"ef")
    placed, head = side.table.at(side.journal, 0)
    assert (placed.begin, head) == (4, 6)


CASES = (
    an_append_is_placed_at_commit,
    what_is_rolled_back_leaves_its_stage,
    an_append_is_placed_once,
    an_expired_stage_is_not_placed,
    a_stage_in_use_does_not_expire,
    registers_and_offsets_are_checked_at_commit,
    replicas_are_counted_at_commit,
    the_keeper_finds_what_it_has_to_do,
    what_is_pruned_becomes_an_expired_stage,
)
