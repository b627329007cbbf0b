"""The error record that takes the place of a step's outputs: everything that is needed to repeat the step. Pure."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outbox.core.consumers.values import Fetched
from outbox.core.graphs.outputs import Produced, as_json
from outbox.core.graphs.steps import STEP_HEADER, Step
from outbox.core.graphs.values import Processor

CAUSES_MAX = 20
TEXT_MAX = 20_000


@dataclass(frozen=True, slots=True)
class StepFailure:
    """Why a step has failed."""

    type: str
    text: str
    causes: tuple[tuple[str, str], ...] = ()
    """Types and texts, from the nearest cause to the first one."""
    trace: str = ""
    context: Mapping[str, Any] = field(default_factory=dict)
    """What the code that raised wants to be known: the attribute `context` of its exception."""

    @property
    def reason(self) -> str:
        return f"{self.type}: {self.text}" if self.text else self.type


def failure_of(error: BaseException) -> StepFailure:
    causes: list[tuple[str, str]] = []
    seen, one = {id(error)}, error
    while (cause := one.__cause__ or (None if one.__suppress_context__ else one.__context__)) is not None:
        if id(cause) in seen or len(causes) == CAUSES_MAX:
            break
        causes.append((_name(cause), str(cause)[:TEXT_MAX]))
        seen.add(id(cause))
        one = cause
    context = getattr(error, "context", None)
    return StepFailure(
        _name(error),
        str(error)[:TEXT_MAX],
        tuple(causes),
        "".join(traceback.format_exception(error))[-TEXT_MAX:],
        dict(context) if isinstance(context, Mapping) else {},
    )


def error_record(
    processor: Processor, graph: str, consumed: Step, step: str, failure: StepFailure, attempts: int, bytes_max: int
) -> Produced:
    """Without the values of the inputs if it would be larger than `bytes_max`."""
    found = _record(processor, graph, consumed, step, failure, attempts, with_values=True)
    if found.size > bytes_max:
        found = _record(processor, graph, consumed, step, failure, attempts, with_values=False)
    return found


def _record(
    processor: Processor,
    graph: str,
    consumed: Step,
    step: str,
    failure: StepFailure,
    attempts: int,
    *,
    with_values: bool,
) -> Produced:
    value = {
        "type": failure.type,
        "error": failure.text,
        "causes": [{"type": name, "error": text} for name, text in failure.causes],
        "trace": failure.trace,
        "context": {str(name): _shown(found) for name, found in failure.context.items()},
        "attempts": attempts,
        "step": step,
        "processor": {
            "graph": graph,
            "name": processor.name,
            "kind": str(processor.kind),
            "in": {stream.binding: stream.topic for stream in processor.inputs},
            "out": {stream.binding: stream.topic for stream in processor.outputs},
            "errors": processor.error_topic,
            "strategy": str(processor.strategy),
        },
        "inputs": [_input(message, with_values=with_values) for message in consumed],
    }
    headers = ((STEP_HEADER, f"{step}:errors".encode()),)
    return Produced(processor.error_topic, consumed[0].key if with_values else None, as_json(value), headers)


def _input(message: Fetched, *, with_values: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "time_ms": message.timestamp_ms,
    }
    if with_values:
        found |= {"key": _text(message.key), "value": _text(message.value)}
        found["headers"] = [[name, _text(value)] for name, value in message.headers]
    else:
        found["omitted_bytes"] = len(message.key or b"") + len(message.value or b"")
    return found


def _text(value: bytes | None) -> str | dict[str, str] | None:
    """Bytes that are no text are written in hexadecimal digits."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def _shown(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)[:TEXT_MAX]


def _name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
