"""A message that fails, and the partitions that were in its batch."""

from outbox.consumers.assignment import AskForHeld, Assignment, Load
from outbox.core.consumers.batch import BatchStep, ConsumerBatch
from outbox.core.consumers.partition import Life
from outbox.core.consumers.values import Fetched, Partition, Polled, Position
from outbox.runtime.threads import THREADS

ONE, OTHER = Partition("orders", 0), Partition("orders", 1)
AT = {ONE: Position(10, "id", 0), OTHER: Position(10, "id", 0)}


def batch_whose_second_partition_has_left():
    assignment = Assignment(THREADS, workers=1, batch=100)
    assignment.assigned([ONE, OTHER])
    load = assignment.task(0)
    assert isinstance(load, Load)
    assignment.loaded(load, AT, {}, {})
    assignment.orders()
    messages = [
        Fetched("orders", number, offset, 0, None, b"", (), 0) for number, offset in ((0, 10), (1, 10), (1, 11))
    ]
    assignment.received(Polled(messages))
    assert isinstance(assignment.task(0), AskForHeld)
    batch = assignment.task(0)
    assert isinstance(batch, ConsumerBatch)
    assignment.locked(batch, {**AT, OTHER: Position(99, "id", 0)}, 7)
    assert batch.messages == 1
    return assignment, batch


def test_a_partition_that_has_left_the_batch_is_not_stopped_for_a_message_of_another():
    assignment, batch = batch_whose_second_partition_has_left()
    load = assignment.task(0)
    assert isinstance(load, Load)
    assignment.loaded(load, {OTHER: Position(99, "id", 0)}, {}, {})
    assignment.stopped(batch, "orders[0]: the message at offset 10 failed 5 times")
    assert {partition: state for partition, (state, _) in assignment.states.items()} == {
        ONE: Life.STOPPED,
        OTHER: Life.PLACED,
    }


def test_a_partition_that_has_left_the_batch_has_no_attempt_of_a_message_of_another():
    assignment, batch = batch_whose_second_partition_has_left()
    assignment.failed(batch, 1, 0, 60.0)
    assignment.dropped(batch)
    assert [one.tries.attempts for one in batch.everything] == [1, 0]


def test_what_is_handled_and_what_fails_is_counted():
    assignment, batch = batch_whose_second_partition_has_left()
    assignment.attempt_failed(0)
    for counts, _ in batch.calls(many=False):
        batch.handled(counts)
    batch.stage.on(BatchStep.WRITTEN)
    batch.stage.on(BatchStep.COMMITS)
    assert assignment.committed(0, batch, []) == 1
    counted = assignment.counted
    assert (counted.handled, counted.failed, sum(counted.durations.counts)) == (1, 1, 1)
    assert 0 <= counted.durations.sum < 10
    handled = {one.partition: one.handled for one in assignment.observed}
    assert handled == {ONE: 1, OTHER: 0}
    assignment.revoked([ONE])
    assignment.assigned([ONE])
    assert {one.partition: one.handled for one in assignment.observed} == handled
    assert {one.partition: (one.state, one.position) for one in assignment.observed}[ONE] == ("assigned", None)
