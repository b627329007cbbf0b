"""Which message may end the process: one at a time is begun, whichever consumer of the process it is for."""

import threading

import pytest

from outbox.consumers.assignment import AskForHeld, Assignment
from outbox.core.consumers.batch import BatchStep, ConsumerBatch
from outbox.core.consumers.crashes import Suspicion
from outbox.core.consumers.holding import StoredMessage, Tries
from outbox.core.consumers.values import Fetched, Partition, Polled, Position
from outbox.runtime.threads import THREADS

FIRST, SECOND = Partition("orders", 0), Partition("orders", 1)


def message(partition, offset):
    return Fetched(*partition, offset, 0, b"k", b"v", (), 0)


def careful(recording, *partitions):
    """An assignment whose partitions have been left by a process that died, with two messages each."""
    found = Assignment(THREADS, workers=1, batch=10, recording=recording)
    found.assigned(partitions)
    load = found.task(0)
    found.loaded(
        load,
        dict.fromkeys(partitions, Position(0)),
        {},
        suspicions=dict.fromkeys(partitions, Suspicion(is_careful=True)),
    )
    found.orders()
    found.received(Polled([message(partition, offset) for partition in partitions for offset in (0, 1)]))
    assert isinstance(next_of(found), AskForHeld)
    return found


def next_of(assignment):
    """What its worker would do now. It does not wait."""
    return assignment._find(assignment._shares[0], THREADS.monotonic())


def is_one_by_one(found):
    return isinstance(found, ConsumerBatch) and found.messages == 1


@pytest.fixture
def recording():
    return threading.Lock()


def test_two_consumers_of_a_process_begin_one_such_message_at_a_time(recording):
    one, other = careful(recording, FIRST), careful(recording, SECOND)
    batch = next_of(one)
    assert is_one_by_one(batch)
    assert not isinstance(next_of(other), ConsumerBatch)
    one.dropped(batch)
    batch = next_of(other)
    assert is_one_by_one(batch)
    assert not isinstance(next_of(one), ConsumerBatch)
    other.dropped(batch)
    assert is_one_by_one(next_of(one))


def test_a_held_message_that_is_recorded_comes_next_and_no_other_is_begun_before_it(recording):
    one, other = careful(recording, FIRST), careful(recording, SECOND)
    (partition,) = one._held.values()
    one.asked_for_held({partition: True}, [partition])
    found = next_of(one)
    row = StoredMessage(7, message(FIRST, 0), Tries())
    found.locked({FIRST: Position(0)}, 1)
    found.release.taken_once_recorded([row], None)
    for step in (BatchStep.WRITTEN, BatchStep.COMMITS):
        found.stage.on(step)
    one.committed(0, found, [])
    assert not isinstance(next_of(other), ConsumerBatch)
    one.revoked([FIRST])
    for _ in range(2):  # it leaves the partition first
        assert not isinstance(next_of(one), ConsumerBatch)
    assert is_one_by_one(next_of(other))


def test_the_lock_is_free_again_when_the_held_message_is_not_to_be_tried_any_more(recording):
    one, other = careful(recording, FIRST), careful(recording, SECOND)
    (partition,) = one._held.values()
    recording.acquire()
    one._recorded = partition
    assert not isinstance(next_of(other), ConsumerBatch)
    batch = next_of(one)
    assert is_one_by_one(batch), "one that was fetched"
    one.dropped(batch)
    assert is_one_by_one(next_of(other))
