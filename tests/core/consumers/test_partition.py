"""A partition from its assignment to its end, and what was fetched of it."""

from itertools import product

import pytest

from outbox.core.consumers.partition import LIFE, WORK, AssignedPartition, Form, Life, Lives, Work, Works
from outbox.core.consumers.values import Fetched, Partition, Position

PARTITION = Partition("orders", 0)
L, E = Life, Lives


def message(offset, epoch=1, value=b"v"):
    return Fetched("orders", 0, offset, epoch, b"k", value, (), 0)


def reading(next_=10, epoch=1):
    one = AssignedPartition(PARTITION)
    one.life.on(Lives.LOADS)
    one.loaded(Position(next_, "id", epoch))
    one.started()
    return one


def offsets(one, limit=100, now=0.0):
    return [found.offset for found in one.head(limit, now)]


TABLE = {
    L.ASSIGNED: {E.LOADS: L.LOADING},
    L.LOADING: {E.AGAIN: L.ASSIGNED, E.LOADED: L.PLACED, E.STOPS: L.STOPPED},
    L.PLACED: {E.STARTED: L.READING, E.AGAIN: L.ASSIGNED, E.STOPS: L.STOPPED},
    L.READING: {E.AGAIN: L.ASSIGNED, E.OUT: L.OUT_OF_BOUNDS, E.STOPS: L.STOPPED},
    L.OUT_OF_BOUNDS: {E.BACK: L.PLACED, E.AGAIN: L.ASSIGNED, E.STOPS: L.STOPPED},
    L.STOPPED: {},
    L.REVOKING: {E.RELEASED: L.REVOKED},
    L.REVOKED: {},
}
HELD = set(Life) - {L.REVOKING, L.REVOKED}


@pytest.mark.parametrize(("state", "event"), list(product(Life, Lives)))
def test_its_life_is_this_table(state, event):
    expected = TABLE[state].get(event)
    if state in HELD and event is E.TAKEN_BACK:
        expected = L.REVOKED
    if state in HELD - {L.LOADING} and event is E.TAKEN_BACK_AT_WORK:
        expected = L.REVOKING
    assert LIFE.transitions.get((state, event)) is expected


def test_it_is_in_one_batch_at_a_time():
    assert WORK.transitions == {(Work.IDLE, Works.TAKEN): Work.IN_BATCH, (Work.IN_BATCH, Works.ENDED): Work.IDLE}
    one = reading()
    one.received([message(10), message(11)])
    one.work.on(Works.TAKEN)
    assert offsets(one) == []
    one.ended()
    assert offsets(one) == [10, 11]


@pytest.mark.parametrize("is_busy", [False, True])
def test_what_was_fetched_is_dropped_when_it_is_revoked_and_a_batch_under_way_ends_first(is_busy):
    one = reading()
    one.received([message(10)])
    if is_busy:
        one.work.on(Works.TAKEN)
    one.revoke()
    assert (one.life.state, one.is_held, one.waiting) == (L.REVOKING if is_busy else L.REVOKED, False, 0)
    if is_busy:
        one.ended()
    assert one.life.state is L.REVOKED


def test_nothing_is_taken_before_it_is_read_and_after_it_has_stopped():
    one = AssignedPartition(PARTITION)
    assert offsets(one) == []
    one = reading()
    one.received([message(10)])
    assert one.stop("other topic")
    assert (offsets(one), one.reason) == ([], "other topic")
    assert not one.stop("again")
    assert not one.again()
    assert one.reason == "other topic"


def test_what_was_fetched_is_taken_in_order_and_leaves_when_it_is_committed():
    one = reading()
    one.received([message(10), message(12), message(13)])
    assert offsets(one, limit=2) == [10, 12]
    one.work.on(Works.TAKEN)
    one.handled(Position(13, "id", 1))
    one.ended()
    assert offsets(one) == [13]
    assert one.copy == 13


def test_what_is_below_the_position_is_left_out_when_it_is_read_again():
    one = reading()
    one.received([message(10), message(11)])
    one.work.on(Works.TAKEN)
    assert one.out_of_bounds("watermark", now=5.0)
    one.life.on(Lives.BACK)
    one.life.on(Lives.STARTED)  # at 10, and the batch with 10 and 11 is under way
    one.received([message(10)])
    one.handled(Position(12, "id", 1))
    one.ended()
    assert offsets(one) == []
    one.received([message(11), message(12)])
    assert offsets(one) == [12]


def test_what_was_read_again_after_it_was_out_of_bounds_is_not_taken_for_old():
    one = reading()
    one.received([message(10), message(11)])
    one.out_of_bounds("watermark", now=5.0)
    one.life.on(Lives.BACK)
    one.life.on(Lives.STARTED)
    one.received([message(10), message(11)])
    assert offsets(one) == [10, 11]


@pytest.mark.parametrize(
    ("epochs", "kept", "other"),
    [((1, 1, 2), 3, None), ((1, 0, 1), 1, 11), ((0,), 0, 10), ((-1, 1), 2, None), ((2, 1), 1, 11)],
)
def test_a_lower_leader_epoch_ends_what_is_kept(epochs, kept, other):
    one = reading(epoch=1)
    found = one.received([message(10 + at, epoch) for at, epoch in enumerate(epochs)])
    assert (one.waiting, found and found.offset) == (kept, other)


def test_messages_of_a_batch_that_failed_go_alone_and_those_before_them_together():
    one = reading()
    one.received([message(offset) for offset in range(10, 16)])
    one.alone(12, 13)
    assert (offsets(one), one.form is Form.ALONE) == ([10, 11], False)
    for reached, expected, is_alone in ((12, [12], True), (13, [13], True), (14, [14, 15], False)):
        one.handled(Position(reached, "id", 1))
        assert (offsets(one), one.form is Form.ALONE) == (expected, is_alone)


def test_a_message_that_failed_waits_and_success_forgets_that():
    one = reading()
    one.received([message(10), message(11)])
    one.alone(10, 10)
    one.failed(10, (1, 0), now=0.0, not_before=7.0)
    assert (offsets(one, now=6.9), offsets(one, now=7.0), one.tries.attempts) == ([], [10], 1)
    one.handled(Position(11, "id", 1))
    assert (offsets(one, now=0.0), one.tries.attempts) == ([11], 0)


def moved(one, next_):
    one.again()
    one.life.on(Lives.LOADS)
    one.loaded(Position(next_, "id", 1))
    one.started()


def test_messages_that_others_have_handled_meanwhile_are_not_waited_for():
    one = reading()
    one.received([message(offset) for offset in range(10, 20)])
    one.alone(10, 19)
    one.failed(10, (1, 0), now=0.0, not_before=7.0)
    moved(one, 15)
    one.received([message(15), message(16)])
    assert (offsets(one), one.form is Form.ALONE, one.tries.attempts) == ([15], True, 0)
    moved(one, 20)
    one.received([message(20), message(21)])
    assert (offsets(one), one.form is Form.ALONE) == ([20, 21], False)


def test_a_message_that_failed_is_the_only_one_of_its_next_attempt():
    one = reading()
    one.received([message(10)])
    one.failed(10, (1, 0), now=0.0, not_before=7.0)
    one.received([message(11), message(12)])
    assert (offsets(one, now=7.0), one.form is Form.ALONE, one.tries.attempts) == ([10], True, 1)
    moved(one, 10)
    one.received([message(10), message(11)])
    assert (offsets(one, now=7.0), one.tries.attempts) == ([10], 1), "it was loaded again, and has not moved"


def test_an_end_is_reached_behind_marks_of_transactions_and_when_no_batch_is_under_way():
    one = reading()
    one.received([message(10)])
    one.read_to(13)
    assert (one.copy, one.has_reached(13)) == (10, False)
    one.work.on(Works.TAKEN)
    one.handled(Position(11, "id", 1))
    assert not one.has_reached(11)
    one.ended()
    assert (one.copy, one.has_reached(13), one.has_reached(14)) == (13, True, False)
    one.out_of_bounds("there is no such offset", now=0.0)
    assert not one.has_reached(11)


def test_the_size_of_what_waits_is_estimated():
    one = reading()
    one.received([message(10, value=b"1234"), message(11, value=None)])
    assert one.waiting_bytes == 4


def test_the_time_of_the_first_message_that_is_not_handled_is_known_as_long_as_it_is_not():
    one = reading()
    assert one.oldest_ms is None
    one.received([message(offset)._replace(timestamp_ms=1000 + offset) for offset in (10, 12, 13)])
    assert one.oldest_ms == 1010
    one.handled(Position(11, "id", 1))
    assert one.oldest_ms == 1012
    one.stop("it failed")
    assert (one.waiting, one.oldest_ms) == (0, 1012), "what was fetched is forgotten, and the message is not handled"
    other = reading()
    other.received([message(10)._replace(timestamp_ms=1010)])
    moved(other, 11)
    assert other.oldest_ms is None, "another owner has handled it"
    other.received([message(11)])
    assert other.oldest_ms is None, "the message has no time"
