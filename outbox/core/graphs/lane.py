"""A lane of a graph: one processor over one partition number, in one process at a time. Pure; its thread acts.

Whoever is assigned a lane takes it over: a new producer fences every older owner, and only then Kafka is asked where
the lane stands. Nothing that this process remembers decides that. After any failure the lane is taken over again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from outbox.core.exactly_once import blame
from outbox.core.graphs import attempts
from outbox.core.graphs.attempts import Begun
from outbox.core.graphs.batch import StepBatch, without
from outbox.core.graphs.errors import StepFailure
from outbox.core.graphs.inputs import Choice, LaneInputs
from outbox.core.graphs.values import STOP, Processor, ProcessorKind, Strategy
from outbox.core.holds.bisection import Bisection
from outbox.core.region import Region, Transitions


class LaneLife(Enum):
    ASSIGNED = "assigned"
    """No producer of this process is initialised for it."""
    PLACED = "placed"
    """Older owners are fenced, and the positions are known."""
    STOPPED = "stopped"
    """An operator or the author of the function has to do something."""
    ENDED = "ended"


class LaneStep(Enum):
    PLACED = "Kafka has said where the lane stands"
    AGAIN = "its producer is not to be used any more"
    STOPS = "no attempt could help"
    ENDS = "the group has taken it back, or the process stops"


LIFE = Transitions(
    "lane of a graph",
    LaneLife.ASSIGNED,
    {
        (LaneLife.ASSIGNED, LaneStep.PLACED): LaneLife.PLACED,
        (LaneLife.ASSIGNED, LaneStep.AGAIN): LaneLife.ASSIGNED,
        (LaneLife.PLACED, LaneStep.AGAIN): LaneLife.ASSIGNED,
        (LaneLife.ASSIGNED, LaneStep.STOPS): LaneLife.STOPPED,
        (LaneLife.PLACED, LaneStep.STOPS): LaneLife.STOPPED,
        (LaneLife.ASSIGNED, LaneStep.ENDS): LaneLife.ENDED,
        (LaneLife.PLACED, LaneStep.ENDS): LaneLife.ENDED,
        (LaneLife.STOPPED, LaneStep.ENDS): LaneLife.ENDED,
    },
)


class StepFate(Enum):
    """What becomes of a step that has failed."""

    RETRY = "again, alone, after a pause"
    RECORD = "its error record takes the place of its outputs"
    LOG = "it is logged, and counted as delivered"
    STOP = "the lane stops before it"


@dataclass(frozen=True, slots=True)
class _Head:
    """What is known of the next step, which was begun before."""

    attempts: int = 0
    error: str = ""
    """Empty: whoever began it has died."""


class GraphLane:
    def __init__(self, processor: Processor) -> None:
        self.processor = processor
        self.inputs = LaneInputs(processor)
        self.life = Region(LIFE)
        self.reason = ""
        """Why it is stopped."""
        self._positions: dict[str, int] = {}
        self._head = _Head()
        self._careful = 0
        """So many steps are run one by one."""
        self._choice: Choice = ()
        self._records_next = False
        self._not_before = float("-inf")
        self._number = 0
        """Of the next step. Steps are numbered while they are told apart."""
        self._search = Bisection()
        self._alone: set[int] = set()
        self._refused: dict[int, StepFailure] = {}
        self._given_up: StepBatch | None = None

    # ---- its life

    @property
    def positions(self) -> Mapping[str, int]:
        return self._positions

    def placed(self, positions: Mapping[str, int], begun: Begun | None) -> bool:
        """After a takeover. False: the topics have to be read from the positions on."""
        self.life.on(LaneStep.PLACED)
        last, self._given_up = self._given_up, None
        if last is not None and positions == last.reached and positions != self._positions:
            self._passed(len(last.steps))
        elif positions != self._positions:
            self._search, self._alone, self._refused = Bisection(), set(), {}
        self._positions = dict(positions)
        repeat = attempts.after(begun, positions)
        self._head = _Head(repeat.attempts, repeat.error)
        self._careful, self._choice, self._records_next = repeat.careful, repeat.choice, True
        return self.inputs.place(positions)

    def again(self) -> None:
        """It is to be taken over, whatever has become of the last batch."""
        self.life.on(LaneStep.AGAIN)

    def stop(self, reason: str) -> None:
        self.reason = reason
        self.life.on(LaneStep.STOPS)

    def end(self) -> None:
        self.life.on(LaneStep.ENDS)

    # ---- a batch begins

    @property
    def not_before(self) -> float:
        """When the next step may be run."""
        return self._not_before

    def next_batch(self, now: float) -> StepBatch | None:
        """None: it has to wait, for messages or for a pause to end."""
        if self.life.state is not LaneLife.PLACED or now < self._not_before:
            return None
        taken = self.inputs.take(self._most(), self._choice)
        if taken is None:
            return None
        if taken.choice and not self._choice:
            self._choice = taken.choice
        return StepBatch(self.processor.strategy, taken, self._positions, self._head.attempts + 1, self._number)

    @property
    def is_careful(self) -> bool:
        """Whether the next step is recorded alone: it may be what has ended the process before."""
        return self._careful > 0

    @property
    def is_searching(self) -> bool:
        """Whether steps are told apart."""
        return self._search.is_searching or bool(self._alone)

    def _most(self) -> int:
        if self._careful or self._number in self._alone:
            return 1
        numbers = range(self._number, self._number + self.processor.batch)
        first_alone = min((number for number in self._alone if number in numbers), default=numbers.stop)
        return min(self._search.take(numbers), first_alone - self._number)

    def begun(self, batch: StepBatch) -> Begun | None:
        """What is to be written before a function is called with these steps; None: nothing."""
        if self.processor.strategy is Strategy.AT_MOST_ONCE or self.known_failure(batch, 0) is not None:
            return None  # it is not repeated
        if self.processor.kind is not ProcessorKind.ALTS and not self._careful and not self._records_next:
            return None
        return Begun(batch.begins, len(batch.steps), batch.attempt, self._choice, self._head.error)

    # ---- its steps

    def known_failure(self, batch: StepBatch, at: int) -> StepFailure | None:
        """Why the function is not called with the step at this place: it has failed already."""
        if at == 0 and self._is_poison:
            text = self._head.error or (
                f"this step has ended its process {self._head.attempts} times, each time that it was run alone"
            )
            return StepFailure("outbox.StepFailed" if self._head.error else "outbox.ProcessEnded", text)
        return self._refused.get(batch.number + at)

    @property
    def _is_poison(self) -> bool:
        """Its function has raised as often as it may, or it has ended that many processes."""
        most = self.processor.attempts
        return self._head.attempts >= (most if self._head.error else max(most, attempts.DEATHS))

    def failed(self, batch: StepBatch, at: int, failure: StepFailure, *, is_final: bool) -> StepFate:
        """The step at this place; `is_final`: another attempt would fail too. With `RECORD` and `LOG` the batch goes
        on. Else only what stands before the step stays in it."""
        fate = self._fate(batch, at, is_final=is_final)
        if fate in (StepFate.RECORD, StepFate.LOG) or batch.is_committed:
            batch.failed(at, failure)
        if fate is StepFate.RETRY:
            batch.end_with(failure, batch.attempt if at == 0 else 1)
        if fate is StepFate.STOP:
            batch.end_with(failure)
        if fate in (StepFate.RETRY, StepFate.STOP):
            self._cut(batch, at)
        return fate

    def stop_before(self, batch: StepBatch, at: int, failure: StepFailure) -> None:
        """The step at this place must not be run, nor be counted as failed."""
        batch.end_with(failure)
        self._cut(batch, at)

    def _cut(self, batch: StepBatch, at: int) -> None:
        if not batch.is_committed:  # else it is too late: at-most-once
            behind = batch.cut(at)
            self.inputs.give_back(behind, batch.reached)

    def _fate(self, batch: StepBatch, at: int, *, is_final: bool) -> StepFate:
        attempt = batch.attempt if at == 0 else 1
        if not is_final and attempt < self.processor.attempts:
            return StepFate.RETRY
        if self.processor.error_topic:
            return StepFate.RECORD
        return StepFate.STOP if self.processor.on_error == STOP else StepFate.LOG

    # ---- its end

    def committed(self, batch: StepBatch) -> None:
        """Its positions are."""
        self._positions = batch.reached
        self._passed(len(batch.steps))

    def _passed(self, steps: int) -> None:
        numbers = range(self._number, self._number + steps)
        self._number += steps
        self._search = self._search.cleared(numbers)
        self._alone.difference_update(numbers)
        for number in numbers:
            self._refused.pop(number, None)
        self._careful, self._choice = max(0, self._careful - steps), without(self._choice, steps)
        self._head, self._records_next = _Head(), False

    def finished(self, batch: StepBatch, now: float, pause_s: float) -> None:
        """Everything of it is done: what follows from the step behind it, if that has failed."""
        if not batch.steps and not batch.is_committed:
            batch.drop()
        ending = batch.ending
        if ending is None:
            return
        if ending.attempt:
            self._head, self._careful = _Head(ending.attempt, ending.failure.reason), max(1, self._careful)
            self._not_before = now + pause_s
        else:
            self.stop(ending.failure.reason)

    def dropped(self, batch: StepBatch) -> None:
        """It is given up. What Kafka says at the takeover that follows decides whether it has taken effect."""
        is_lost = batch.is_committed
        batch.drop()
        if not is_lost:
            self.inputs.give_back(batch.steps, batch.begins)
            self._given_up = batch

    # ---- what Kafka has refused

    def blamed(self, batch: StepBatch, action: blame.Action) -> str:
        """Before `dropped`. Why the lane has to stop; empty: it need not."""
        if batch.is_committed:
            return ""  # at-most-once: its outputs are lost
        if isinstance(action, blame.HoldRecord):
            return self._refuse(batch, {batch.writer_of(action.at)}, action.reason)
        if isinstance(action, blame.Search | blame.HoldLikely):
            reason = action.code if isinstance(action, blame.Search) else action.reason
            writers = set(map(batch.writer_of, action.at))
            if len(writers) == 1:
                return self._refuse(batch, writers, reason)
            numbers = {batch.number + at for at in writers}
            if isinstance(action, blame.Search):
                self._search = self._search.refused(numbers)
            else:
                self._alone |= numbers
        return ""

    def _refuse(self, batch: StepBatch, writers: Iterable[int], reason: str) -> str:
        for at in writers:
            number = batch.number + at
            if number in self._refused or at in batch.failures:
                return f"Kafka rejects the error record of a step: {reason}"
            self._refused[number] = StepFailure("outbox.OutputRejected", reason)
        return ""
