"""The questions to both servers of consumers. The test compares answers and rows call by call. A case states the
expected answer only if it is the point of the case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outbox.core.consumers.crashes import Suspicion
from outbox.core.consumers.holding import DISCARD, FAILED, NOT_YET, POISON, RETRY, SKIP, Fate, Kept, Release
from outbox.core.consumers.values import DEAD_LETTER, ConsumerOptions, Fetched, Partition
from tests.simulation.conformance.consumers import CONSUMER, ONE, OPTIONS, TWO, Raised, Script, Worker, at, message
from tests.simulation.consumers.topic import TOPIC

LETTERS = ConsumerOptions(CONSUMER, on_error=DEAD_LETTER)
LATER, NEVER, NOW = 60.0, None, 0.0
ELSEWHERE = Partition("elsewhere", 0)


def failed(pause_s: float | None = NOW, attempts: int = 1, delays: int = 0, reason: str = FAILED) -> Fate:
    return Fate(reason, attempts, delays, "it failed", pause_s)


def keep(worker: Worker, *kept: tuple[Fetched, Fate | None], options: ConsumerOptions = OPTIONS) -> list[int]:
    worker.begin()
    ids: list[int] = worker.held("keep", options, [Kept(one, "id", fate) for one, fate in kept])
    worker.commit()
    return ids


def take(worker: Worker, partition: Partition = ONE, limit: int = 50) -> list[int]:
    """Offsets."""
    worker.begin()
    rows = worker.held("take", partition, limit)
    worker.commit()
    return [row.message.offset for row in rows]


def release(worker: Worker, fates: dict[int, Fate | None], *, options: ConsumerOptions = OPTIONS) -> None:
    """By offset; None: it is handled."""
    worker.begin()
    found = Release()
    found.taken(worker.held("take", ONE, 50), is_full=False)
    for row in found.rows:
        if row.message.offset in fates:
            if (fate := fates[row.message.offset]) is None:
                found.handled(row)
            else:
                found.failed(row, fate, leaves=fate.pause_s is None and options is LETTERS)
    worker.held("change", options, ONE, found)
    worker.held("keys", {ONE: [b"a", b"b", b"k"]})
    worker.commit()


def look(worker: Worker) -> dict[Partition, bool]:
    found: dict[Partition, bool] = worker.outside().held("look", [ONE, TWO])
    return found


# ---- held messages


def messages_are_kept_in_order(s: Script) -> None:
    worker = s.worker()
    assert look(worker) == {}
    kept = [
        (message(1, b"a"), failed(LATER, 3, 2)),
        (message(2, b"a"), None),
        (message(3, None), failed(NOW, reason=NOT_YET)),
        (message(1, b"b", 1), failed(NEVER, reason=POISON)),
        (message(4, b""), failed(NOW)),
    ]
    assert len(keep(worker, *kept)) == 5
    assert keep(worker, *kept) == []
    worker.begin()
    assert len(worker.held("keep", OPTIONS, [Kept(message(1, b"a"), "another id", None)])) == 1
    worker.transaction("rollback")
    keep(worker, (message(9, b"c"), failed(NEVER)), options=LETTERS)
    look(worker)


def keys_of_live_rows_are_held(s: Script) -> None:
    worker, other = s.worker(), s.worker("other")
    keep(worker, (message(1, b"a"), failed(LATER)), (message(2, None), failed()), (message(3, b"b", 1), failed(NEVER)))
    keep(worker, (message(4, b"dead"), failed(NEVER)), options=LETTERS)
    asked = {ONE: [b"a", b"a", b"b", b"dead"], TWO: [b"a", b"b"], ELSEWHERE: [b"a"]}
    worker.begin()
    worker.held("keys", asked)
    worker.held("keys", {})
    worker.held("keep", OPTIONS, [Kept(message(5, b"b"), "id", failed(LATER))])
    worker.held("keys", asked)
    other.begin()
    other.held("keys", asked)
    other.transaction("rollback")
    worker.commit()
    other.begin()
    other.held("keys", asked)
    other.transaction("rollback")


def the_first_of_each_key_that_is_due_is_tried(s: Script) -> None:
    worker = s.worker()
    keep(worker, (message(1, b"a"), failed(LATER)))
    keep(worker, (message(2, b"b"), failed()))
    keep(worker, (message(3, b"a"), None), (message(4, b"b"), None), (message(5, b"c", 1), failed()))
    keep(worker, (message(6, b"c"), failed(reason=NOT_YET)))
    keep(worker, (message(7, b"c"), None), (message(8, b"c"), None))
    look(worker)
    assert take(worker) == [2, 4, 6, 7, 8]
    assert take(worker, limit=4) == [2, 4, 6, 7]
    assert take(worker, limit=3) == [2, 6]
    assert take(worker, limit=1) == [2]
    assert take(worker, TWO) == [5]
    assert take(worker, ELSEWHERE) == []


def messages_without_a_key_wait_for_none(s: Script) -> None:
    worker = s.worker()
    keep(worker, (message(1, None), failed(LATER)))
    keep(worker, (message(2, None), failed()))
    keep(worker, (message(3, b"k"), failed()), (message(4, b"k"), None))
    keep(worker, (message(5, None), failed()))
    assert take(worker) == [2, 5, 3, 4]
    assert take(worker, limit=2) == [2, 3]
    release(worker, {2: None, 5: failed(NEVER)})
    s.side.want(5, DISCARD)
    assert take(worker) == [3, 4]
    look(worker)


def a_key_goes_on_behind_one_that_was_handled(s: Script) -> None:
    worker = s.worker()
    keep(worker, (message(1), failed()), (message(2), None), (message(3), None), (message(4, b"a"), failed(LATER)))
    s.side.age(120)
    release(worker, {1: None})
    look(worker)
    release(worker, {2: failed(NOW, 0, 1, NOT_YET)})
    s.side.age(120)
    release(worker, {2: failed(LATER, 2)})
    assert look(worker) == {ONE: False}
    assert take(worker) == []


def a_dead_letter_is_passed_by(s: Script) -> None:
    worker = s.worker()
    keep(worker, (message(1), failed()), (message(2), None), options=LETTERS)
    release(worker, {1: failed(NEVER, 5)}, options=LETTERS)
    release(worker, {2: None}, options=LETTERS)
    assert look(worker) == {}
    s.side.want(1, RETRY)
    assert look(worker) == {ONE: True}
    assert take(worker) == [1]


def one_behind_a_message_that_waits_for_an_operator_is_not_due(s: Script) -> None:
    worker = s.worker()
    keep(worker, (message(1), failed(NEVER)), (message(2), failed(NEVER, 5)), (message(3), None))
    s.side.want(2, RETRY)
    assert take(worker) == []
    assert look(worker) == {ONE: False}
    s.side.want(1, DISCARD)
    assert take(worker) == [2, 3]
    assert look(worker) == {ONE: True}


def a_dead_letter_that_fails_once_more_keeps_its_row(s: Script) -> None:
    worker = s.worker()
    dead = message(1), message(2, b"b"), message(3, b"c")
    ids = keep(worker, *((one, failed(NEVER, 5, 1)) for one in dead), options=LETTERS)
    s.side.age(120)
    s.side.want(1, RETRY)
    again = [(dead[0], failed(LATER)), (dead[1], None), (dead[2], failed(NEVER))]
    assert keep(worker, *again, options=LETTERS) == ids
    assert keep(worker, *again, options=LETTERS) == ids[2:], "the others live"
    look(worker)


def a_change_is_rolled_back(s: Script) -> None:
    worker = s.worker()
    ids = keep(worker, (message(1), failed()), (message(2), None))
    found = Release()
    worker.begin()
    found.taken(worker.held("take", ONE, 50), is_full=False)
    found.handled(found.rows[0])
    worker.held("change", OPTIONS, ONE, found)
    worker.held("give_back", ids)
    worker.transaction("rollback")
    assert take(worker) == [1, 2]


def rows_that_are_gone_are_not_changed(s: Script) -> None:
    worker = s.worker()
    keep(worker, (message(1), failed()), (message(2, b"a"), failed()))
    found = Release()
    worker.begin()
    found.taken(worker.held("take", ONE, 50), is_full=False)
    found.handled(found.rows[0])
    found.failed(found.rows[1], failed(LATER, 2), leaves=False)
    worker.commit()
    s.side.want(1, DISCARD)
    s.side.want(2, DISCARD)
    take(worker)
    worker.begin()
    worker.held("change", OPTIONS, ONE, found)
    worker.commit()


def requests_of_operators_are_carried_out(s: Script) -> None:
    worker = s.worker()
    keep(
        worker, *((message(10 * n + m, b"k%d" % n), failed(NEVER) if not m else None) for n in range(4) for m in (0, 1))
    )
    for offset, wanted in ((0, RETRY), (10, SKIP), (20, DISCARD)):
        s.side.want(offset, wanted)
    assert look(worker) == {ONE: True}
    assert sorted(take(worker)) == [0, 1, 11, 21]
    assert look(worker) == {ONE: True}
    for offset, wanted in ((10, RETRY), (30, SKIP), (31, DISCARD), (1, SKIP), (11, RETRY)):
        s.side.want(offset, wanted)
    assert sorted(take(worker)) == [0, 10, 11, 21]


def several_of_one_key_are_wanted(s: Script) -> None:
    worker = s.worker()
    keep(worker, (message(1), failed(NEVER)), (message(2), None), (message(3), None), (message(4), None))
    for offset, wanted in ((1, SKIP), (2, DISCARD)):
        s.side.want(offset, wanted)
    assert take(worker) == [3, 4]
    for offset, wanted in ((3, DISCARD), (1, RETRY)):
        s.side.want(offset, wanted)
    assert take(worker) == [1, 4]


def what_is_wanted_meanwhile_is_kept(s: Script) -> None:
    worker = s.worker()
    keep(worker, (message(3, b"a"), failed(NEVER)), (message(1), failed(NEVER)), (message(2), None))
    worker.begin()
    worker.held("keys", {ONE: [b"k"]})
    s.side.want(1, SKIP)
    worker.held("keep", OPTIONS, [Kept(message(4), "id", None)])
    worker.commit()
    worker.begin()
    worker.held("keys", {ONE: [b"a"]})
    s.side.want(3, RETRY)
    assert [row.message.offset for row in worker.held("take", ONE, 50)] == [3, 2, 4]
    worker.commit()


def attempts_are_given_back(s: Script) -> None:
    worker = s.worker()
    ids = keep(worker, (message(1), failed(NEVER)), (message(2, b"b"), failed(LATER, 3)), options=LETTERS)
    ids += keep(worker, (message(3, b"c"), failed(LATER, 2, reason=NOT_YET)), (message(4, b"b"), None))
    ids += keep(worker, (message(5, b"d"), failed(LATER, 0)), (message(6, b"e", 1), failed(LATER, 2)))
    worker.begin()
    worker.held("give_back", [*ids, 10**9])
    worker.held("keys", {ONE: [b"k", b"b"]})
    worker.commit()
    worker.begin()
    new = worker.held("keep", OPTIONS, [Kept(message(7), "id", failed(LATER, 2))])
    worker.held("give_back", [*new, *new, ids[1]])
    worker.held("give_back", new)
    worker.commit()


# ---- ids of messages


def ids_are_new_once(s: Script) -> None:
    worker, other = s.worker(), s.worker("other")
    worker.begin()
    assert worker.seen("add", TOPIC, ["b", "a", "b"]) == ["b", "a"]
    assert worker.seen("add", TOPIC, ["a", "c"]) == ["c"]
    other.begin()
    assert other.seen("add", TOPIC, ["d"]) == ["d"]
    worker.seen("remove", TOPIC, ["c", "none"])
    assert worker.seen("add", TOPIC, ["c", "e"]) == ["c", "e"]
    worker.seen("remove", TOPIC, ["e"])
    other.transaction("rollback")
    worker.commit()
    worker.begin()
    assert worker.seen("add", TOPIC, list("abcde")) == ["d", "e"]
    worker.seen("remove", TOPIC, ["a"])
    assert worker.seen("add", "elsewhere", ["a", "b"]) == ["a", "b"]
    worker.commit()
    worker.begin()
    assert worker.seen("add", TOPIC, ["a", "b"]) == ["a"]
    worker.seen("remove", "elsewhere", ["a"])
    worker.transaction("rollback")
    assert worker.outside().seen("tidy") is False


# ---- owners


def an_owner_is_unclean_until_it_leaves(s: Script) -> None:
    me, other = s.worker(), s.worker("other")
    assert me.outside().owners("load", [ONE, TWO]) == {}
    me.owners("leave", [ONE])
    me.owners("own", {ONE: (10, Suspicion()), TWO: (20, Suspicion(True, 7, 1, 5))})
    me.owners("begin", ONE, 10)
    me.owners("begin", ELSEWHERE, 10)
    other.outside().owners("begin", ONE, 11)
    other.owners("leave", [ONE, TWO])
    other.owners("load", [ONE, ELSEWHERE])
    other.owners("own", {ONE: (11, Suspicion(True, 10, 1))})
    other.owners("begin", ONE, 11)
    me.owners("begin", ONE, 12)
    me.owners("given_up", ONE)
    me.owners("begin", TWO, 20)
    me.owners("given_up", TWO)
    other.owners("load", [ONE, TWO])
    me.owners("leave", [ONE, TWO])
    me.owners("load", [TWO, ONE])
    other.owners("leave", [ONE])
    other.owners("own", {ONE: (12, Suspicion())})


def messages_pass_one_by_one(s: Script) -> None:
    me, other = s.worker(), s.worker("other")
    me.outside().owners("own", {ONE: (10, Suspicion(True, 11, 1)), TWO: (20, Suspicion(True, 21, 1))})
    for is_last, name in ((False, "rollback"), (False, "commit"), (True, "rollback"), (True, "commit")):
        me.outside().owners("begin", ONE, 10)
        me.begin()
        me.owners("passed", ONE, is_last=is_last)
        other.outside().owners("load", [ONE, TWO])
        me.transaction(name)
    me.begin()
    me.owners("passed", TWO, is_last=True)
    me.owners("passed", TWO, is_last=False)
    me.owners("passed", ELSEWHERE, is_last=True)
    me.commit()
    other.begin()
    other.owners("passed", TWO, is_last=True)
    other.commit()


def a_successor_waits_for_the_transaction_of_an_owner(s: Script) -> None:
    me, other = s.worker(), s.worker("other", patience_s=0.2)
    me.outside().owners("own", {ONE: (10, Suspicion(True, 10, 1)), TWO: (20, Suspicion())})
    for name in ("rollback", "commit"):
        me.outside().owners("begin", ONE, 10)
        me.begin()
        me.owners("passed", ONE, is_last=True)
        with pytest.raises(Raised, match="55P03"):
            other.outside().owners("own", {ONE: (11, Suspicion()), TWO: (21, Suspicion())})
        other.outside().owners("begin", ONE, 11)
        other.owners("leave", [ONE, TWO])
        waiting = s.beside(lambda one: one.outside().owners("own", {ONE: (11, Suspicion(True, 10, 1))}))
        me.transaction(name)
        assert waiting() is None
        other.outside().owners("load", [ONE, TWO])
        waiting = s.beside(lambda one: one.outside().owners("leave", [ONE]))
        assert waiting() is None


def an_owner_lives_as_long_as_it_is_connected(s: Script) -> None:
    me = s.worker()
    me.outside().owners("own", {ONE: (10, Suspicion())})
    assert not me.owners("load", [ONE])[ONE].is_alive
    with s.side.alive("me"):
        assert me.owners("load", [ONE])[ONE].is_alive
        s.worker("other").outside().owners("own", {TWO: (10, Suspicion())})
        assert not me.owners("load", [TWO])[TWO].is_alive
    assert not me.owners("load", [ONE])[ONE].is_alive


# ---- positions


def a_position_is_made_once_and_moved_with_the_transaction(s: Script) -> None:
    worker, other = s.worker(), s.worker("other")
    worker.outside().positions("load", [ONE, TWO])
    worker.positions("create", {ONE: at(5), TWO: at(0, "", -1)})
    worker.positions("create", {ONE: at(9)})
    worker.positions("create", {})
    other.outside().positions("load", [TWO, ONE, ELSEWHERE])
    for name in ("rollback", "commit"):
        worker.begin()
        worker.positions("lock", [TWO, ONE, ELSEWHERE])
        assert worker.positions("write", {ONE: (5, at(8, "new", 4)), TWO: (0, at(1))})[0] == 2
        other.outside().positions("load", [ONE, TWO])
        worker.transaction(name)
    assert other.outside().positions("load", []) == {}


def a_position_that_was_moved_is_not_moved_again(s: Script) -> None:
    worker = s.worker()
    worker.outside().positions("create", {ONE: at(5), TWO: at(7)})
    worker.begin()
    worker.positions("lock", [ONE, TWO])
    assert worker.positions("write", {ONE: (6, at(8)), TWO: (7, at(9)), ELSEWHERE: (0, at(1))})[0] == 1
    assert worker.positions("write", {ONE: (5, at(6))})[0] == 1
    assert worker.positions("write", {ONE: (5, at(7)), TWO: (7, at(10))})[0] == 0
    assert worker.positions("write", {ONE: (6, at(6, "again", 5))})[0] == 1
    assert worker.positions("write", {ONE: (6, at(5)), TWO: (9, at(11))})[0] == 2
    worker.commit()


def no_row_is_no_transaction(s: Script) -> None:
    worker = s.worker()
    worker.begin()
    assert worker.positions("lock", [ONE]) == ({}, 0)
    assert worker.positions("lock", []) == ({}, 0)
    worker.transaction("rollback")
    assert worker.outside().positions("settle", [ONE]) == {}


def a_locked_position_is_waited_for(s: Script) -> None:
    worker = s.worker()
    worker.outside().positions("create", {ONE: at(5), TWO: at(7)})

    def lock(other: Worker) -> Any:
        other.begin()
        found, _ = other.positions("lock", [ONE, TWO])
        other.transaction("rollback")
        return found

    for name, found in (("rollback", {ONE: at(5), TWO: at(7)}), ("commit", {TWO: at(7)})):
        worker.begin()
        worker.positions("lock", [ONE])
        worker.positions("write", {ONE: (5, at(6))})
        waiting = s.beside(lock)
        worker.transaction(name)
        assert waiting() == found


def a_locked_position_is_not_waited_for_too_long(s: Script) -> None:
    worker, other = s.worker(), s.worker("other", patience_s=0.2)
    worker.outside().positions("create", {ONE: at(5)})
    worker.begin()
    worker.positions("lock", [ONE])
    other.begin()
    with pytest.raises(Raised, match="55P03"):
        other.positions("lock", [ONE])
    other.transaction("rollback")
    with pytest.raises(Raised, match="55P03"):
        other.outside().positions("settle", [ONE])
    assert other.outside().positions("unblock", [TWO]) == 0
    assert other.positions("unblock", [ONE, TWO]) == 1
    with pytest.raises(Raised):
        worker.positions("write", {ONE: (5, at(6))})
    assert not worker.transaction("is_replaced", 10**9)
    third = s.worker("third")
    third.begin()
    third.positions("lock", [ONE])
    third.commit()
    assert other.outside().positions("unblock", [ONE]) == 0


# ---- the transaction


def a_commit_in_doubt_is_settled(s: Script) -> None:
    worker, other = s.worker(), s.worker("other")
    worker.outside().positions("create", {ONE: at(5), TWO: at(7)})
    worker.positions("settle", [ONE, TWO])
    worker.begin()
    _, xid = worker.positions("lock", [ONE])
    worker.positions("write", {ONE: (5, at(6))})
    worker.hook()
    worker.is_ended()
    with pytest.raises(Raised, match="CommitInDoubt"):
        worker.commit()
    worker.transaction("close")
    assert not worker.transaction("is_committed", xid)
    worker.outside().positions("settle", [ONE, TWO])
    worker.begin()
    _, xid = worker.positions("lock", [ONE, TWO])
    worker.positions("write", {ONE: (5, at(6))})
    assert other.transaction("is_committed", xid) is None, "it is under way"
    worker.commit()
    assert worker.transaction("is_committed", xid)
    worker.outside().positions("settle", [ONE, TWO])

    other.begin()
    other.positions("lock", [TWO])
    other.positions("write", {TWO: (7, at(8))})
    waiting = s.beside(lambda one: one.outside().positions("settle", [ONE, TWO])[TWO][0])
    other.commit()
    assert waiting() == at(8)


def hooks_are_taken_off(s: Script) -> None:
    worker = s.worker()
    for name in ("rollback", "commit", "commit"):
        worker.begin()
        worker.seen("add", TOPIC, ["a"])
        if name == "rollback":
            worker.hook()
        worker.hook()
        worker.transaction("problem")
        worker.transaction(name)


def what_was_done_since_the_mark_is_undone(s: Script) -> None:
    worker = s.worker()
    worker.begin()
    worker.hook()
    worker.seen("add", TOPIC, ["a"])
    worker.transaction("mark")
    worker.hook()
    worker.seen("add", TOPIC, ["b"])
    assert worker.transaction("keep") == ""
    worker.transaction("mark")
    worker.hook()
    worker.seen("add", TOPIC, ["c"])
    worker.seen("remove", TOPIC, ["a"])
    assert worker.transaction("undo")
    worker.transaction("mark")
    assert worker.seen("add", TOPIC, ["a", "b", "c"]) == ["c"]
    worker.transaction("keep")
    worker.commit()


def a_raw_end_of_the_transaction_is_noticed(s: Script) -> None:
    worker = s.worker()
    worker.outside().positions("create", {ONE: at(5)})
    for statement in ("ROLLBACK", "COMMIT"):
        worker.begin()
        _, xid = worker.positions("lock", [ONE])
        worker.seen("add", TOPIC, [statement])
        worker.transaction("mark")
        worker.raw(statement)
        with pytest.raises(Raised, match="3B001"):
            worker.transaction("keep")
        assert not worker.transaction("undo")
        assert worker.transaction("is_replaced", xid) is (statement == "COMMIT"), "nothing was committed"
        assert worker.transaction("is_committed", xid) is (statement == "COMMIT")
        worker.begin()
        _, xid = worker.positions("lock", [ONE])
        worker.raw(statement)
        assert worker.transaction("is_replaced", xid)
        worker.begin()
        _, xid = worker.positions("lock", [ONE])
        worker.raw(statement)
        assert worker.positions("write", {ONE: (5, at(6))})[1] != xid
        worker.transaction("rollback")
        worker.begin()
        _, xid = worker.positions("lock", [ONE])
        assert not worker.transaction("is_replaced", xid)
        assert not worker.transaction("is_committed", xid)


def a_closed_connection_is_replaced_by_another(s: Script) -> None:
    worker, other = s.worker(), s.worker("other")
    worker.outside().positions("create", {ONE: at(5)})
    worker.begin()
    worker.positions("lock", [ONE])
    worker.seen("add", TOPIC, ["a"])
    worker.transaction("mark")
    worker.transaction("close")
    assert worker.transaction("keep"), "the connection was closed"
    assert not worker.transaction("undo")
    other.begin()
    other.positions("lock", [ONE])
    other.commit()
    worker.begin()
    worker.positions("lock", [ONE])
    worker.commit()


CASES: tuple[Callable[[Script], None], ...] = (
    messages_are_kept_in_order,
    keys_of_live_rows_are_held,
    the_first_of_each_key_that_is_due_is_tried,
    messages_without_a_key_wait_for_none,
    a_key_goes_on_behind_one_that_was_handled,
    a_dead_letter_is_passed_by,
    one_behind_a_message_that_waits_for_an_operator_is_not_due,
    a_dead_letter_that_fails_once_more_keeps_its_row,
    a_change_is_rolled_back,
    rows_that_are_gone_are_not_changed,
    requests_of_operators_are_carried_out,
    several_of_one_key_are_wanted,
    what_is_wanted_meanwhile_is_kept,
    attempts_are_given_back,
    ids_are_new_once,
    an_owner_is_unclean_until_it_leaves,
    messages_pass_one_by_one,
    a_successor_waits_for_the_transaction_of_an_owner,
    an_owner_lives_as_long_as_it_is_connected,
    a_position_is_made_once_and_moved_with_the_transaction,
    a_position_that_was_moved_is_not_moved_again,
    no_row_is_no_transaction,
    a_locked_position_is_waited_for,
    a_locked_position_is_not_waited_for_too_long,
    a_commit_in_doubt_is_settled,
    hooks_are_taken_off,
    what_was_done_since_the_mark_is_undone,
    a_raw_end_of_the_transaction_is_noticed,
    a_closed_connection_is_replaced_by_another,
)
