"""A lane: what it takes after a takeover, a failure, a crash or a refusal."""

from itertools import product

import pytest

from outbox.core.exactly_once.blame import HoldLikely, HoldRecord, HoldTopic, Search
from outbox.core.graphs.attempts import Begun
from outbox.core.graphs.batch import BatchAct
from outbox.core.graphs.errors import StepFailure
from outbox.core.graphs.lane import LIFE, LaneLife, LaneStep, StepFate
from outbox.core.graphs.outputs import Produced
from tests.core.graphs.graphs import alts, join, many, offsets, placed, processor

L, E = LaneLife, LaneStep
TABLE = {
    L.ASSIGNED: {E.PLACED: L.PLACED, E.AGAIN: L.ASSIGNED, E.STOPS: L.STOPPED, E.ENDS: L.ENDED},
    L.PLACED: {E.AGAIN: L.ASSIGNED, E.STOPS: L.STOPPED, E.ENDS: L.ENDED},
    L.STOPPED: {E.ENDS: L.ENDED},
    L.ENDED: {},
}
BOOM = StepFailure("ValueError", "boom")


@pytest.mark.parametrize(("life", "step"), list(product(LaneLife, LaneStep)))
def test_its_life_is_this_table(life, step):
    assert LIFE.transitions.get((life, step)) is TABLE[life].get(step)


def lane_of(of=None, count=6, **given):
    of = of or processor(batch=4)
    lane = placed(of, **given)
    for topic in of.topics:
        lane.inputs.received(many(topic, *range(count)))
    return lane


def commit(lane, batch):
    while (act := batch.next) is not None:
        if act is BatchAct.COMMIT:
            batch.commits()
        batch.did(act)
    lane.committed(batch)
    lane.finished(batch, 0.0, 1.0)


def lose(lane, batch, positions=None, begun=None):
    """The batch is given up, and the lane taken over."""
    lane.dropped(batch)
    lane.again()
    return lane.placed(positions or lane.positions, begun)


def wrote(batch):
    """Each step one output."""
    for at in range(len(batch.steps)):
        batch.wrote(at, [Produced("priced", None, b"", ())])


def steps_of(batch):
    return [step[0].offset for step in batch.steps]


def test_batches_follow_each_other():
    lane = lane_of()
    first = lane.next_batch(0.0)
    commit(lane, first)
    assert (steps_of(first), steps_of(lane.next_batch(0.0))) == ([0, 1, 2, 3], [4, 5])


def test_the_first_batch_after_a_takeover_is_recorded_and_no_other():
    lane = lane_of()
    batch = lane.next_batch(0.0)
    assert lane.begun(batch) == Begun({"orders": 0}, 4)
    commit(lane, batch)
    assert lane.begun(lane.next_batch(0.0)) is None


def test_every_batch_of_an_alts_is_recorded_with_its_choice():
    lane = lane_of(alts(batch=4), count=4)
    for choice in ((("shop", 1), ("web", 1), ("shop", 1), ("web", 1)),) * 2:
        batch = lane.next_batch(0.0)
        assert lane.begun(batch).choice == choice
        commit(lane, batch)


def test_at_most_once_repeats_nothing_and_records_nothing():
    lane = lane_of(processor(batch=4, strategy="at-most-once"))
    assert lane.begun(lane.next_batch(0.0)) is None


def test_after_a_crash_the_same_inputs_are_taken_in_the_same_order():
    lane = lane_of(alts(batch=3), begun=Begun({"shop": 0, "web": 0}, 3, 1, (("web", 2), ("shop", 1))))
    found = []
    for _ in range(3):
        batch = lane.next_batch(0.0)
        found += offsets(batch.steps)
        assert sum(count for _, count in lane.begun(batch).choice) == 4 - len(found)
        commit(lane, batch)
    assert found == [(("web", 0),), (("web", 1),), (("shop", 0),)]


def test_a_batch_that_was_begun_and_not_committed_is_repeated_step_by_step():
    lane = lane_of(begun=Begun({"orders": 0}, 3))
    found = []
    for number in range(4):
        batch = lane.next_batch(0.0)
        found.append(steps_of(batch))
        assert (lane.begun(batch) is not None) == (number < 3)
        commit(lane, batch)
    assert found == [[0], [1], [2], [3, 4, 5]]


def test_a_step_that_was_begun_alone_in_two_deaths_is_not_run_again():
    lane = lane_of(begun=Begun({"orders": 0}, 1, 1))
    batch = lane.next_batch(0.0)
    assert (batch.attempt, lane.known_failure(batch, 0)) == (2, None)
    assert lane.begun(batch) == Begun({"orders": 0}, 1, 2)
    lane = lane_of(begun=Begun({"orders": 0}, 1, 2))
    batch = lane.next_batch(0.0)
    assert "has ended its process 2 times" in lane.known_failure(batch, 0).text
    commit(lane, batch)
    assert lane.known_failure(lane.next_batch(0.0), 0) is None


def test_both_inputs_of_a_join_are_given_back():
    lane = lane_of(join(batch=4))
    batch = lane.next_batch(0.0)
    assert lose(lane, batch), "nothing has to be read again"
    assert offsets(lane.next_batch(0.0).steps) == offsets(batch.steps)


def test_a_commit_in_doubt_is_settled_by_the_positions():
    lane = lane_of()
    batch = lane.next_batch(0.0)
    assert lose(lane, batch, batch.reached)
    assert steps_of(lane.next_batch(0.0)) == [4, 5]


def test_positions_of_another_owner_make_the_lane_read_again():
    lane = lane_of()
    lane.next_batch(0.0)
    lane.again()
    assert not lane.placed({"orders": 9}, None)
    assert lane.next_batch(0.0) is None


# ---- failures of the function


@pytest.mark.parametrize(
    ("options", "fate"),
    [
        ({}, StepFate.STOP),
        ({"on_error": "log"}, StepFate.LOG),
        ({"on_error": "topic:errors"}, StepFate.RECORD),
        ({"attempts": 2}, StepFate.RETRY),
    ],
)
def test_what_becomes_of_a_step_that_fails(options, fate):
    lane = lane_of(processor(batch=4, **options))
    batch = lane.next_batch(0.0)
    assert lane.failed(batch, 1, BOOM, is_final=False) is fate
    assert len(batch.steps) == (1 if fate in (StepFate.STOP, StepFate.RETRY) else 4)


def test_a_lane_stops_before_the_step_and_keeps_what_stands_before_it():
    lane = lane_of()
    batch = lane.next_batch(0.0)
    lane.failed(batch, 2, BOOM, is_final=False)
    commit(lane, batch)
    assert (lane.life.state, lane.reason) == (LaneLife.STOPPED, "ValueError: boom")
    assert lane.positions == {"orders": 2}
    assert lane.next_batch(0.0) is None


def test_a_step_is_tried_again_alone_and_after_a_pause():
    lane = lane_of(processor(batch=4, attempts=3, on_error="log"))
    batch = lane.next_batch(0.0)
    assert lane.failed(batch, 1, BOOM, is_final=False) is StepFate.RETRY
    commit(lane, batch)
    for attempt in (2, 3):
        assert lane.next_batch(lane.not_before - 0.1) is None
        batch = lane.next_batch(lane.not_before)
        assert (steps_of(batch), batch.attempt) == ([1], attempt)
        assert lane.begun(batch) == Begun({"orders": 1}, 1, attempt, (), "ValueError: boom")
        fate = lane.failed(batch, 0, BOOM, is_final=False)
        if fate is StepFate.RETRY:
            lane.finished(batch, lane.not_before, 1.0)
    assert fate is StepFate.LOG
    commit(lane, batch)
    assert steps_of(lane.next_batch(9.0)) == [2, 3, 4, 5]


def test_attempts_survive_the_process():
    of = processor(batch=4, attempts=3, on_error="log")
    lane = lane_of(of, begun=Begun({"orders": 0}, 1, 2, (), "boom"))
    batch = lane.next_batch(0.0)
    assert (batch.attempt, lane.known_failure(batch, 0)) == (3, None)
    lane = lane_of(of, begun=Begun({"orders": 0}, 1, 3, (), "boom"))
    assert lane.known_failure(lane.next_batch(0.0), 0).text == "boom"


def test_an_error_that_every_attempt_would_have_is_not_tried_again():
    lane = lane_of(processor(batch=4, attempts=3, on_error="log"))
    assert lane.failed(lane.next_batch(0.0), 1, BOOM, is_final=True) is StepFate.LOG


def test_a_pair_that_does_not_belong_together_stops_the_lane_whatever_on_error_says():
    lane = lane_of(join(batch=4, on_error="log"))
    batch = lane.next_batch(0.0)
    lane.stop_before(batch, 0, BOOM)
    lane.finished(batch, 0.0, 1.0)
    assert lane.life.state is LaneLife.STOPPED
    assert lane.positions == {"orders": 0, "stock": 0}


def test_at_most_once_has_lost_a_step_that_fails_and_finishes_the_others():
    lane = lane_of(processor(batch=4, strategy="at-most-once"))
    batch = lane.next_batch(0.0)
    while batch.next is not BatchAct.RUN:
        if batch.next is BatchAct.COMMIT:
            batch.commits()
        batch.did(batch.next)
    lane.committed(batch)
    assert lane.failed(batch, 1, BOOM, is_final=False) is StepFate.STOP
    assert len(batch.steps) == 4
    lane.finished(batch, 0.0, 1.0)
    assert (lane.life.state, lane.positions) == (LaneLife.STOPPED, {"orders": 4})


def test_at_most_once_gives_nothing_back_once_the_positions_are_committed():
    lane = lane_of(processor(batch=4, strategy="at-most-once"))
    batch = lane.next_batch(0.0)
    while batch.next is not BatchAct.RUN:
        if batch.next is BatchAct.COMMIT:
            batch.commits()
        batch.did(batch.next)
    lane.committed(batch)
    lose(lane, batch)
    assert steps_of(lane.next_batch(0.0)) == [4, 5]


# ---- refusals by Kafka


def test_a_step_whose_output_is_refused_gets_its_error_record():
    lane = lane_of(processor(batch=4, on_error="topic:errors"))
    batch = lane.next_batch(0.0)
    wrote(batch)
    assert lane.blamed(batch, HoldRecord(2, "MSG_SIZE_TOO_LARGE: too large")) == ""
    lose(lane, batch)
    again = lane.next_batch(0.0)
    assert [lane.known_failure(again, at) is not None for at in range(4)] == [False, False, True, False] or (
        len(again.steps) == 1
    )


def test_an_error_record_that_is_refused_stops_the_lane():
    lane = lane_of(processor(batch=4, on_error="topic:errors"))
    batch = lane.next_batch(0.0)
    wrote(batch)
    batch.failed(0, BOOM)
    assert "rejects the error record of a step" in lane.blamed(batch, HoldRecord(0, "too large"))


def test_suspects_are_told_apart_by_halves():
    lane = lane_of(processor(batch=8), count=8)
    batch = lane.next_batch(0.0)
    wrote(batch)
    assert lane.blamed(batch, Search(tuple(range(8)), "POLICY_VIOLATION")) == ""
    lose(lane, batch)
    half = lane.next_batch(0.0)
    assert len(half.steps) == 4
    wrote(half)
    lane.blamed(half, Search((0, 1, 2, 3), "POLICY_VIOLATION"))
    lose(lane, half)
    quarter = lane.next_batch(0.0)
    assert len(quarter.steps) == 2
    commit(lane, quarter)
    third = lane.next_batch(0.0)
    assert steps_of(third) == [2]
    wrote(third)
    lane.blamed(third, Search((0,), "POLICY_VIOLATION"))
    lose(lane, third)
    assert "POLICY_VIOLATION" in lane.known_failure(lane.next_batch(0.0), 0).text


def test_likely_ones_are_sent_alone():
    lane = lane_of()
    batch = lane.next_batch(0.0)
    wrote(batch)
    assert lane.blamed(batch, HoldLikely((1, 2), "INVALID_RECORD")) == ""
    lose(lane, batch)
    found = []
    for _ in range(4):
        batch = lane.next_batch(0.0)
        found.append(steps_of(batch))
        commit(lane, batch)
    assert found == [[0], [1], [2], [3, 4, 5]]


def test_several_outputs_of_one_step_are_one_suspect():
    lane = lane_of()
    batch = lane.next_batch(0.0)
    batch.wrote(0, [Produced("a", None, b"", ())] * 2)
    assert lane.blamed(batch, Search((0, 1), "POLICY_VIOLATION")) == ""
    lose(lane, batch)
    assert lane.known_failure(lane.next_batch(0.0), 0) is not None


def test_a_topic_that_takes_no_records_is_no_fault_of_a_step():
    lane = lane_of()
    batch = lane.next_batch(0.0)
    wrote(batch)
    assert lane.blamed(batch, HoldTopic(0, "unknown topic")) == ""
    lose(lane, batch)
    assert lane.known_failure(lane.next_batch(0.0), 0) is None
