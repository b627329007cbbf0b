"""Which messages a transaction takes, what is compared before COMMIT, and what becomes of a COMMIT in doubt."""

from itertools import product

import pytest

from outbox.core.consumers.batch import STAGE, BatchSize, BatchStep, Stage, take, take_held
from outbox.core.consumers.blame import MessageFailed
from outbox.core.consumers.crashes import mark_of
from outbox.core.consumers.holding import CAREFUL_MAX, FAILED, Fate, StoredMessage, Tries
from outbox.core.consumers.partition import KNOWN_MAX, AssignedPartition, Form, Life, Lives
from outbox.core.consumers.values import Fetched, Partition, Position

S, E = Stage, BatchStep
XID = 2**32 + 7


def reading(number, *offsets, epoch=1):
    one = AssignedPartition(Partition("orders", number))
    one.life.on(Lives.LOADS)
    one.loaded(Position(offsets[0] if offsets else 0, "id", epoch))
    one.life.on(Lives.STARTED)
    if offsets:
        one.received([Fetched("orders", number, offset, epoch, None, b"", (), 0) for offset in offsets])
    return one


def rows(*partitions, **changed):
    return {one.partition: changed.get(f"p{one.partition.number}", one.position) for one in partitions}


def locked(*partitions):
    batch = take(partitions, 100, 0.0)
    batch.locked(rows(*partitions), XID)
    return batch


def handle(batch, count=100):
    called = []
    for at, (counts, messages) in enumerate(batch.calls(many=False)):
        if at == count:
            break
        called += [(message.partition, message.offset) for message in messages]
        batch.handled(counts)
    return called


TABLE = {
    S.TAKEN: {E.LOCKED: S.LOCKED, E.DROPPED: S.DROPPED},
    S.LOCKED: {E.WRITTEN: S.WRITTEN, E.DROPPED: S.DROPPED},
    S.WRITTEN: {E.COMMITS: S.COMMITTING, E.DROPPED: S.DROPPED},
    S.COMMITTING: {E.COMMITTED: S.COMMITTED, E.LOST: S.IN_DOUBT, E.DROPPED: S.DROPPED},
    S.IN_DOUBT: {E.COMMITTED: S.COMMITTED, E.DROPPED: S.DROPPED},
    S.COMMITTED: {},
    S.DROPPED: {},
}


@pytest.mark.parametrize(("stage", "step"), list(product(Stage, BatchStep)))
def test_its_stages_are_this_table(stage, step):
    assert STAGE.transitions.get((stage, step)) is TABLE[stage].get(step)


# ---- what it takes


def test_a_batch_takes_from_each_partition_in_order_and_no_more_than_the_limit():
    first, second = reading(0, 5, 6, 8), reading(1, 3, 4)
    batch = take([first, second], 4, 0.0)
    assert batch.messages == 4
    batch.locked(rows(first, second), XID)
    assert handle(batch) == [(0, 5), (0, 6), (0, 8), (1, 3)]
    assert take([first, second], 4, 0.0) is None, "both are in a batch"


def test_a_message_that_goes_alone_is_a_batch_of_its_own():
    first, second = reading(0, 5, 6), reading(1, 3)
    first.alone(5, 5)
    alone = take([first, second], 4, 0.0)
    assert ([one.partition for one in alone.staying], alone.first[1].offset) == ([first.partition], 5)
    assert (alone.messages, alone.form) == (1, Form.ALONE)
    other = take([second, first], 4, 0.0)
    assert other.partitions == [second.partition]


def test_lists_hold_everything_and_are_never_empty():
    first, second = reading(0, 5, 6), reading(1, 3)
    batch = locked(first, second)
    ((counts, messages),) = batch.calls(many=True)
    assert [message.offset for message in messages] == [5, 6, 3]
    batch.handled(counts)
    assert batch.reached[second.partition] == (3, Position(4, "id", 1))
    batch = take([one := reading(0, 5)], 1, 0.0)
    batch.locked({}, XID)
    assert list(batch.calls(many=True)) == []
    assert one.is_busy, "until it is dropped"


# ---- what leaves it


@pytest.mark.parametrize(
    ("row", "leaves"),
    [
        (Position(5, "id", 1), False),
        (Position(5, "id", 0), False),
        (Position(6, "id", 1), True),
        (Position(4, "id", 1), True),
        (Position(5, "other", 1), True),
        (None, True),
    ],
)
def test_a_partition_with_another_position_leaves_and_the_others_stay(row, leaves):
    one, other = reading(0, 5), reading(1, 3)
    batch = take([one, other], 10, 0.0)
    found = {partition: at for partition, at in rows(one, other, p0=row).items() if at is not None}
    assert batch.locked(found, XID) == ([one] if leaves else [])
    assert other.partition in batch.partitions
    assert (one.partition in batch.partitions) is not leaves


def test_a_partition_that_the_group_has_taken_back_leaves():
    one = reading(0, 5)
    batch = take([one], 10, 0.0)
    one.revoke()
    assert batch.locked(rows(one), XID) == [one]


# ---- what is written


def test_the_positions_behind_what_was_handled_are_written():
    one, other = reading(0, 5, 8), reading(1, 3)
    batch = locked(one, other)
    handle(batch, count=1)
    assert batch.reached == {one.partition: (5, Position(6, "id", 1))}


@pytest.mark.parametrize(
    ("moved", "xid", "says"),
    [(1, XID, ""), (1, XID + 1, "ended the transaction itself"), (0, XID, "0 of 1 positions could be written")],
)
def test_another_transaction_or_other_rows_must_not_be_committed(moved, xid, says):
    batch = locked(reading(0, 5))
    handle(batch)
    objection = batch.objection(moved, xid)
    assert (says in objection) if says else not objection
    assert not says or "orders[0] 5" in objection


# ---- its end


def test_what_was_handled_is_counted_and_the_rest_stays():
    one = reading(0, 5, 6, 8)
    batch = locked(one)
    handle(batch, count=2)
    for step in (BatchStep.WRITTEN, BatchStep.COMMITS):
        batch.stage.on(step)
    assert batch.committed() == 2
    one.ended()
    assert (one.position, [found.offset for found in one.head(9, 0.0)]) == (Position(7, "id", 1), [8])


BEFORE, REACHED, BEYOND = Position(5, "id", 1), Position(6, "id", 1), Position(9, "id", 1)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((REACHED, 7), True),
        ((REACHED, 8), False),
        ((BEFORE, 3), False),
        ((Position(2, "id", 1), 3), False),
        ((BEYOND, 9), None),
        (None, None),
    ],
)
def test_a_commit_in_doubt_is_settled_by_the_position_and_who_has_written_it(found, expected):
    one = reading(0, 5)
    batch = locked(one)
    handle(batch)
    assert batch.settled({} if found is None else {one.partition: found}) is expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((REACHED, 7), (BEYOND, 9), True),
        ((BEYOND, 9), (REACHED, 7), True),
        ((BEYOND, 9), (BEFORE, 3), False),
        ((REACHED, 8), (BEFORE, 3), False),
    ],
)
def test_one_position_that_others_have_not_moved_settles_a_commit_in_doubt(first, second, expected):
    one, other = reading(0, 5), reading(1, 5)
    batch = locked(one, other)
    handle(batch)
    assert batch.settled({one.partition: first, other.partition: second}) is expected


def test_a_batch_is_dropped_from_any_stage_but_its_end():
    batch = locked(reading(0, 5))
    batch.dropped()
    batch.dropped()
    assert batch.stage.state is Stage.DROPPED


# ---- failures


def test_the_message_that_the_function_raised_for_goes_alone():
    one, other = reading(0, 5, 6, 8), reading(1, 3)
    batch = locked(one, other)
    handle(batch, count=1)
    batch.raised()
    batch.alone()
    for each in (one, other):
        each.ended()
    assert [found.offset for found in one.head(9, 0.0)] == [5]
    assert other.form is Form.PLAIN


@pytest.mark.parametrize("many", [False, True])
def test_each_goes_alone_when_it_is_not_known_which_has_failed(many):
    one, other = reading(0, 5, 6), reading(1, 3)
    batch = locked(one, other)
    list(batch.calls(many=many))
    if many:
        batch.raised()
    batch.alone()
    for each in (one, other):
        each.ended()
    assert one.form is Form.ALONE
    assert other.form is Form.ALONE


def keyed(number, *pairs):
    one = reading(number, pairs[0][0])
    one.forget()
    one.received([Fetched("orders", number, offset, 1, key, b"", (), 0) for offset, key in pairs])
    return one


def fail(pause_s=1.0):
    return Fate(FAILED, 1, 0, "no", pause_s)


def test_messages_of_held_keys_wait_and_the_others_are_handled():
    one = keyed(0, (5, b"a"), (6, b"b"), (7, None), (8, b"a"))
    batch = locked(one)
    assert batch.asks == {one.partition: [b"a", b"b"]}
    batch.blocked({one.partition: frozenset({b"a"})})
    assert handle(batch) == [(0, 6), (0, 7)]
    assert [(kept.message.offset, kept.topic_id, kept.fate) for kept in batch.kept] == [
        (5, "id", None),
        (8, "id", None),
    ]
    assert batch.reached == {one.partition: (5, Position(9, "id", 1))}


def test_a_list_has_no_message_of_a_held_key_and_may_be_left_out():
    one = keyed(0, (5, b"a"), (6, b"b"))
    batch = locked(one)
    batch.blocked({one.partition: frozenset({b"a"})})
    ((counts, messages),) = batch.calls(many=True)
    assert [message.offset for message in messages] == [6]
    batch.handled(counts)
    assert (len(batch.kept), batch.reached[one.partition][1].next) == (1, 7)
    one.ended()
    batch = locked(one)
    batch.blocked({one.partition: frozenset({b"a", b"b"})})
    assert list(batch.calls(many=True)) == []
    assert (len(batch.kept), batch.reached[one.partition][1].next) == (2, 7)


def test_nothing_is_asked_where_nothing_is_held():
    one, other = keyed(0, (5, b"a")), keyed(1, (5, None))
    one.has_held = False
    assert locked(one, other).asks == {}


@pytest.mark.parametrize(("is_left_out", "called"), [(False, [5, 7]), (True, [5, 6, 7])])
def test_a_message_that_failed_is_kept_and_later_ones_of_its_key_wait(is_left_out, called):
    one = keyed(0, (5, b"a"), (6, b"a"), (7, b"b"))
    batch, found = locked(one), []
    for counts, (message,) in batch.calls(many=False):
        found.append(message.offset)
        if message.offset == 5:
            batch.keep(one, message, fail(), is_left_out=is_left_out)
        else:
            batch.handled(counts)
    assert found == called
    assert [kept.message.offset for kept in batch.kept] == ([5] if is_left_out else [5, 6])
    for step in (BatchStep.WRITTEN, BatchStep.COMMITS):
        batch.stage.on(step)
    assert batch.committed() == 3 - len(batch.kept), "what is kept is not handled"
    assert one.has_held is True


def test_repeated_messages_are_passed_without_a_call():
    one = keyed(0, (5, b"a"), (6, b"b"), (7, b"a"), (8, b"c"))
    batch = locked(one)
    batch.blocked({one.partition: frozenset({b"c"})})
    assert [message.offset for message in batch.left] == [5, 6, 7]
    batch.leave_out([Fetched("orders", 0, 6, 1, b"b", b"", (), 0)])
    assert [message.offset for message in batch.left] == [5, 7]
    assert handle(batch, count=1) == [(0, 5)]
    assert [message.offset for message in batch.left] == [7]


def test_lists_have_no_repeated_messages():
    one = keyed(0, (5, b"a"), (6, b"b"))
    batch = locked(one)
    batch.leave_out([Fetched("orders", 0, 5, 1, b"a", b"", (), 0)])
    ((counts, messages),) = batch.calls(many=True)
    assert [message.offset for message in messages] == [6]
    batch.handled(counts)
    assert batch.reached[one.partition][1].next == 7


def test_attempts_of_a_failing_consumer_are_given_back():
    one = keyed(0, (5, b"a"), (6, b"a"))
    batch = locked(one)
    for _, (message,) in batch.calls(many=False):
        batch.keep(one, message, fail(None), is_left_out=False)
    batch.give_back(2.0)
    assert [(kept.fate.attempts, kept.fate.pause_s) for kept in batch.kept if kept.fate] == [(0, 2.0)]


def test_a_batch_of_which_nothing_was_handled_or_kept_is_empty():
    batch = locked(keyed(0, (5, b"a")))
    assert batch.is_empty
    handle(batch)
    assert not batch.is_empty
    assert not take_held(reading(1)).is_empty


def test_messages_are_careful_after_one_has_failed_and_for_some_time():
    one = keyed(0, *[(offset, None) for offset in range(5, 205)])
    batch = locked(one)
    batch.careful()
    batch.dropped()
    one.ended()
    batch = locked(one)
    assert (batch.form, batch.messages) == (Form.CAREFUL, CAREFUL_MAX)
    for at, (counts, (message,)) in enumerate(batch.calls(many=False)):
        if at:
            batch.handled(counts)
        else:
            batch.keep(one, message, fail(), is_left_out=False)
    for step in (BatchStep.WRITTEN, BatchStep.COMMITS):
        batch.stage.on(step)
    batch.committed()
    one.ended()
    for form in (Form.CAREFUL, Form.PLAIN):
        batch = locked(one)
        assert batch.form is form
        handle(batch)
        for step in (BatchStep.WRITTEN, BatchStep.COMMITS):
            batch.stage.on(step)
        batch.committed()
        one.ended()


def test_a_message_that_is_known_to_fail_is_a_batch_without_a_call():
    one = keyed(0, (5, b"a"), (6, b"b"), (7, b"c"))
    one.known(6, MessageFailed("no"))
    batch = locked(one)
    assert (batch.form, batch.messages) == (Form.PLAIN, 1)
    handle(batch)
    for step in (BatchStep.WRITTEN, BatchStep.COMMITS):
        batch.stage.on(step)
    batch.committed()
    one.ended()
    batch = locked(one)
    assert (batch.form, batch.first[1].offset, one.known_of(6)) == (Form.KEPT, 6, MessageFailed("no"))


def test_a_held_message_that_is_known_to_fail_does_not_stop_what_was_fetched():
    """It may have the offset of one that was fetched, if its topic was created again."""
    one = keyed(0, (5, b"a"), (6, b"b"))
    row = StoredMessage(3, one.head(1, 0.0)[0], Tries())
    one.known(row.mark, MessageFailed("no"))
    assert [found.offset for found in one.head(9, 0.0)] == [5, 6]
    assert (one.known_of(row.mark), one.known_of(5)) == (MessageFailed("no"), None)
    batch = take_held(one)
    batch.locked(rows(one), XID)
    batch.release.taken([row], is_full=False)
    batch.release.failed(row, Fate(FAILED, 1, 0, "no", 1.0), leaves=False)
    for step in (BatchStep.WRITTEN, BatchStep.COMMITS):
        batch.stage.on(step)
    batch.committed()
    assert one.known_of(row.mark) is None


def test_what_is_known_of_messages_is_bounded_and_poison_is_not_forgotten():
    one = keyed(0, (5, b"a"))
    one.known(mark_of(1), MessageFailed("no", is_poison=True))
    for id_ in range(2, KNOWN_MAX + 10):
        one.known(mark_of(id_), MessageFailed("no"))
    assert [one.known_of(mark_of(id_)) is not None for id_ in (1, 2, 10, 11, KNOWN_MAX + 9)] == [
        True, False, False, True, True,
    ]  # fmt: skip


def test_the_size_is_halved_and_grows_back():
    size = BatchSize(100)
    size.smaller(100)
    size.smaller(50)
    assert size.limit == 25
    size.smaller(4)
    assert size.limit == 2
    size.smaller(1)
    size.smaller(1)
    assert size.limit == 1
    for _ in range(9):
        size.worked()
    assert size.limit == 100


def test_a_partition_that_is_revoked_in_a_batch_is_released_by_its_end():
    one = reading(0, 5)
    batch = locked(one)
    one.revoke()
    assert one.life.state is Life.REVOKING
    batch.dropped()
    one.ended()
    assert one.life.state is Life.REVOKED


def test_what_was_handled_is_counted_for_each_partition():
    one, two = reading(0, 10, 11), reading(1, 5)
    batch = locked(one, two)
    assert batch.counts == {one.partition: 0, two.partition: 0}
    handle(batch, 2)
    assert batch.counts == {one.partition: 2, two.partition: 0}
