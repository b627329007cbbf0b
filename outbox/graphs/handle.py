"""From the messages of a step to a call of the user's function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outbox.core.graphs.pairs import different_keys, is_wanted
from outbox.core.graphs.steps import Step
from outbox.core.graphs.values import Processor
from outbox.graphs.message import StepMessage


class StepCalls:
    """A `StepsPort`. Any number of threads may call it."""

    def __init__(self, processor: Processor, owner: str) -> None:
        self._processor, self._owner = processor, owner
        self._names = [stream.binding for stream in processor.inputs]

    def mismatch(self, step: Step) -> bool:
        processor = self._processor
        if not processor.is_join or not processor.is_checked:
            return False
        if processor.check is None:
            return different_keys(step)
        return not self._with(processor.check, step, "", 1)

    def call(self, step: Step, step_hash: str, attempt: int) -> Any:
        processor = self._processor
        if not is_wanted(processor.only, step):
            return None
        if processor.only.where is not None and not self._with(processor.only.where, step, step_hash, attempt):
            return None
        assert processor.function is not None
        return self._with(processor.function, step, step_hash, attempt)

    def _with(self, function: Callable[..., Any], step: Step, step_hash: str, attempt: int) -> Any:
        messages = [StepMessage(message, self._owner, step_hash, attempt) for message in step]
        if not self._processor.is_join:
            return function(messages[0])
        return function(**dict(zip(self._names, messages, strict=True)))
