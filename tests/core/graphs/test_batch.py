"""The order in which a batch is dealt with: that is its strategy."""

from itertools import product

import pytest

from outbox.core.graphs.batch import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    BatchAct,
    BatchStage,
    GraphStep,
    StepBatch,
    without,
)
from outbox.core.graphs.errors import StepFailure
from outbox.core.graphs.inputs import TakenSteps
from outbox.core.graphs.outputs import Produced
from outbox.core.graphs.values import Strategy
from tests.core.graphs.graphs import fetched, offsets

S, E = BatchStage, GraphStep
TABLES = {
    EXACTLY_ONCE.name: {
        S.TAKEN: {E.RAN: S.RAN},
        S.RAN: {E.BEGUN: S.OPEN},
        S.OPEN: {E.SENT: S.SENT},
        S.SENT: {E.ACKNOWLEDGED: S.ACKNOWLEDGED},
        S.ACKNOWLEDGED: {E.POSITIONED: S.POSITIONED},
        S.POSITIONED: {E.COMMITS: S.IN_DOUBT},
        S.IN_DOUBT: {E.COMMITTED: S.COMMITTED},
    },
    AT_LEAST_ONCE.name: {
        S.TAKEN: {E.RAN: S.RAN},
        S.RAN: {E.SENT: S.SENT},
        S.SENT: {E.ACKNOWLEDGED: S.ACKNOWLEDGED},
        S.ACKNOWLEDGED: {E.BEGUN: S.OPEN},
        S.OPEN: {E.POSITIONED: S.POSITIONED},
        S.POSITIONED: {E.COMMITS: S.IN_DOUBT},
        S.IN_DOUBT: {E.COMMITTED: S.COMMITTED},
    },
    AT_MOST_ONCE.name: {
        S.TAKEN: {E.BEGUN: S.OPEN},
        S.OPEN: {E.POSITIONED: S.POSITIONED},
        S.POSITIONED: {E.COMMITS: S.IN_DOUBT},
        S.IN_DOUBT: {E.COMMITTED: S.COMMITTED},
        S.COMMITTED: {E.RAN: S.RAN},
        S.RAN: {E.SENT: S.SENT},
        S.SENT: {E.ACKNOWLEDGED: S.ACKNOWLEDGED},
    },
}


@pytest.mark.parametrize(
    ("table", "stage", "step"), list(product((EXACTLY_ONCE, AT_LEAST_ONCE, AT_MOST_ONCE), BatchStage, GraphStep))
)
def test_its_stages_are_this_table(table, stage, step):
    expected = TABLES[table.name].get(stage, {}).get(step)
    if step is E.DROPPED and stage in TABLES[table.name]:
        expected = S.DROPPED
    assert table.transitions.get((stage, step)) is expected


def batch(strategy=Strategy.EXACTLY_ONCE, count=3):
    return StepBatch(strategy, TakenSteps(tuple((fetched(offset=at),) for at in range(count))), {"orders": 0}, 1)


@pytest.mark.parametrize("strategy", Strategy)
def test_everything_is_done_once(strategy):
    one, done = batch(strategy), []
    while (act := one.next) is not None:
        if act is BatchAct.COMMIT:
            one.commits()
        one.did(act)
        done.append(act)
    assert sorted(done, key=str) == sorted(BatchAct, key=str)
    assert one.is_committed


def test_positions_come_when_every_output_is_acknowledged():
    for strategy in (Strategy.EXACTLY_ONCE, Strategy.AT_LEAST_ONCE):
        one, done = batch(strategy), []
        while (act := one.next) is not BatchAct.COMMIT:
            one.did(act)
            done.append(act)
        assert done.index(BatchAct.AWAIT) < done.index(BatchAct.POSITION)


def test_outputs_belong_to_steps():
    one = batch()
    one.wrote(0, [Produced("a", None, b"1", ()), Produced("a", None, b"2", ())])
    one.wrote(2, [Produced("a", None, b"3", ())])
    assert [one.writer_of(at) for at in range(3)] == [0, 0, 2]
    assert one.reached == {"orders": 3}


def test_what_stands_before_a_step_stays():
    one = batch()
    one.wrote(0, [Produced("a", None, b"1", ())])
    one.wrote(1, [Produced("a", None, b"2", ())])
    assert offsets(one.cut(1)) == [(("orders", 1),), (("orders", 2),)]
    assert [output.value for output in one.outputs] == [b"1"]
    assert one.reached == {"orders": 1}


def test_failures_are_kept_for_whoever_reports_them():
    one = batch()
    one.failed(1, StepFailure("E", "boom"))
    assert one.failures == {1: StepFailure("E", "boom")}


@pytest.mark.parametrize(
    ("steps", "left"), [(0, (("a", 2), ("b", 1))), (1, (("a", 1), ("b", 1))), (2, (("b", 1),)), (3, ()), (9, ())]
)
def test_what_is_left_of_a_choice(steps, left):
    assert without((("a", 2), ("b", 1)), steps) == left
