"""One batch of a lane: what is done with it, in which order. Pure; the lane's thread does it.

The strategy is the order. Exactly-once puts outputs and positions into one transaction; the positions come when every
output is acknowledged, so a transaction that Kafka ends too early can only lack positions. At-least-once writes the
outputs first, outside of a transaction. At-most-once commits the positions before a function is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from outbox.core.graphs.errors import StepFailure
from outbox.core.graphs.inputs import Choice, TakenSteps
from outbox.core.graphs.outputs import Produced
from outbox.core.graphs.steps import Step
from outbox.core.graphs.values import Strategy
from outbox.core.region import Region, Transitions


class BatchAct(Enum):
    RUN = "call the function with each step"
    BEGIN = "begin a transaction"
    SEND = "hand the outputs over"
    AWAIT = "wait until every output is acknowledged"
    POSITION = "put the positions into the transaction"
    COMMIT = "commit the transaction"


ORDER: Mapping[Strategy, tuple[BatchAct, ...]] = {
    Strategy.EXACTLY_ONCE: (
        BatchAct.RUN,
        BatchAct.BEGIN,
        BatchAct.SEND,
        BatchAct.AWAIT,
        BatchAct.POSITION,
        BatchAct.COMMIT,
    ),
    Strategy.AT_LEAST_ONCE: (
        BatchAct.RUN,
        BatchAct.SEND,
        BatchAct.AWAIT,
        BatchAct.BEGIN,
        BatchAct.POSITION,
        BatchAct.COMMIT,
    ),
    Strategy.AT_MOST_ONCE: (
        BatchAct.BEGIN,
        BatchAct.POSITION,
        BatchAct.COMMIT,
        BatchAct.RUN,
        BatchAct.SEND,
        BatchAct.AWAIT,
    ),
}


class BatchStage(Enum):
    """What was done last."""

    TAKEN = "taken"
    RAN = "ran"
    OPEN = "open"
    SENT = "sent"
    ACKNOWLEDGED = "acknowledged"
    POSITIONED = "positioned"
    IN_DOUBT = "in doubt"
    """The commit has begun: only Kafka knows what becomes of it."""
    COMMITTED = "committed"
    DROPPED = "dropped"


class GraphStep(Enum):
    RAN = "every step was run, or has its error record"
    BEGUN = "a transaction has begun"
    SENT = "the outputs are handed over"
    ACKNOWLEDGED = "every output is acknowledged"
    POSITIONED = "the positions are in the transaction"
    COMMITS = "the commit begins"
    COMMITTED = "it has taken effect"
    DROPPED = "it was given up"


_AFTER = {
    BatchAct.RUN: ((GraphStep.RAN, BatchStage.RAN),),
    BatchAct.BEGIN: ((GraphStep.BEGUN, BatchStage.OPEN),),
    BatchAct.SEND: ((GraphStep.SENT, BatchStage.SENT),),
    BatchAct.AWAIT: ((GraphStep.ACKNOWLEDGED, BatchStage.ACKNOWLEDGED),),
    BatchAct.POSITION: ((GraphStep.POSITIONED, BatchStage.POSITIONED),),
    BatchAct.COMMIT: ((GraphStep.COMMITS, BatchStage.IN_DOUBT), (GraphStep.COMMITTED, BatchStage.COMMITTED)),
}


def _table(strategy: Strategy, name: str) -> Transitions[BatchStage, GraphStep]:
    events = [one for act in ORDER[strategy] for one in _AFTER[act]]
    path = [BatchStage.TAKEN, *(stage for _, stage in events)]
    transitions = {(before, event): after for (before, after), (event, _) in zip(pairwise(path), events, strict=True)}
    transitions |= {(stage, GraphStep.DROPPED): BatchStage.DROPPED for stage in path[:-1]}
    return Transitions(name, BatchStage.TAKEN, transitions)


EXACTLY_ONCE = _table(Strategy.EXACTLY_ONCE, "batch of a processor, exactly-once")
AT_LEAST_ONCE = _table(Strategy.AT_LEAST_ONCE, "batch of a processor, at-least-once")
AT_MOST_ONCE = _table(Strategy.AT_MOST_ONCE, "batch of a processor, at-most-once")
STAGES: Mapping[Strategy, Transitions[BatchStage, GraphStep]] = {
    Strategy.EXACTLY_ONCE: EXACTLY_ONCE,
    Strategy.AT_LEAST_ONCE: AT_LEAST_ONCE,
    Strategy.AT_MOST_ONCE: AT_MOST_ONCE,
}


@dataclass(frozen=True, slots=True)
class BatchEnding:
    """The step behind the batch has failed."""

    failure: StepFailure
    attempt: int = 0
    """How often it was run; it is tried again. 0: the lane stops."""


class StepBatch:
    def __init__(
        self, strategy: Strategy, taken: TakenSteps, begins: Mapping[str, int], attempt: int, number: int = 0
    ) -> None:
        """`begins`: the positions before its first step. `attempt`, `number`: of that step; steps are numbered while
        they are told apart."""
        self.stage = Region(STAGES[strategy])
        self._left = list(ORDER[strategy])
        self.steps, self.choice, self.begins = taken.steps, taken.choice, begins
        self.attempt, self.number = attempt, number
        self._outputs: list[Produced] = []
        self._writers: list[int] = []
        """Of each output, the place of its step."""
        self._failed: dict[int, StepFailure] = {}
        self._ending: BatchEnding | None = None

    # ---- in order

    @property
    def next(self) -> BatchAct | None:
        """What is to be done now; None: nothing is left."""
        return self._left[0] if self._left else None

    def did(self, act: BatchAct) -> None:
        assert self._left[0] is act
        del self._left[0]
        self.stage.on(_AFTER[act][-1][0])

    def commits(self) -> None:
        self.stage.on(GraphStep.COMMITS)

    def drop(self) -> None:
        self.stage.on(GraphStep.DROPPED)

    @property
    def is_committed(self) -> bool:
        """Its positions are."""
        return BatchAct.COMMIT not in self._left

    # ---- its steps

    @property
    def reached(self) -> dict[str, int]:
        return TakenSteps(self.steps).reached(self.begins)

    @property
    def outputs(self) -> list[Produced]:
        return self._outputs

    def writer_of(self, output: int) -> int:
        """The place of the step that this output belongs to."""
        return self._writers[output]

    def wrote(self, at: int, outputs: list[Produced]) -> None:
        """The step at this place. It is called for each step, in order."""
        self._outputs += outputs
        self._writers += [at] * len(outputs)

    def failed(self, at: int, failure: StepFailure) -> None:
        """It is counted as delivered: its error record takes the place of its outputs, or the log has it."""
        self._failed[at] = failure

    @property
    def failures(self) -> Mapping[int, StepFailure]:
        return self._failed

    @property
    def ending(self) -> BatchEnding | None:
        return self._ending

    def end_with(self, failure: StepFailure, attempt: int = 0) -> None:
        self._ending = BatchEnding(failure, attempt)

    def cut(self, at: int) -> tuple[Step, ...]:
        """Only the steps before this place stay; the others are returned. To be called before anything is sent."""
        steps, self.steps = self.steps, self.steps[:at]
        kept = [one for one in zip(self._outputs, self._writers, strict=True) if one[1] < at]
        self._outputs, self._writers = [output for output, _ in kept], [writer for _, writer in kept]
        return steps[at:]


def without(choice: Choice, steps: int) -> Choice:
    """Of the steps behind the first ones."""
    found, skip = [], steps
    for topic, count in choice:
        if count > skip:
            found.append((topic, count - skip))
        skip = max(0, skip - count)
    return tuple(found)
