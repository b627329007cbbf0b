"""A graph as it was declared and checked: plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class ProcessorKind(StrEnum):
    PIPE = "pipe"
    """One message of one topic is a step."""
    JOIN = "join"
    """A step takes the next message of each topic, paired by position."""
    ALTS = "alts"
    """A step takes the next message of whichever topic has one."""
    FORK = "fork"
    """As a pipe or a join, with several outputs."""
    SINK = "sink"
    """A consumer: its effects are in a database."""
    SOURCE = "source"
    """A topic that is filled from outside of the graph."""


class Strategy(StrEnum):
    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"


STOP, LOG = "stop", "log"
"""What becomes of a step that has failed as often as it may. A third choice is a topic for errors."""
POSITIONS, ATTEMPTS = "positions", "attempts"
"""Last parts of the names of a graph's own topics."""


@dataclass(frozen=True, slots=True)
class TopicStream:
    """A topic under the name that a function knows it by."""

    binding: str
    topic: str


@dataclass(frozen=True, slots=True)
class StepFilter:
    """Which steps call the function. The positions move past the others."""

    topics: frozenset[str] = frozenset()
    """Empty: all."""
    types: frozenset[str] = frozenset()
    """Values of the header `type`; empty: all."""
    where: Callable[..., Any] | None = None
    """Called with what the function would get."""


@dataclass(frozen=True, slots=True)
class Processor:
    name: str
    kind: ProcessorKind
    inputs: tuple[TopicStream, ...]
    """In the order of their topics, so that the order of a declaration does not matter."""
    outputs: tuple[TopicStream, ...] = ()
    function: Callable[..., Any] | None = None
    strategy: Strategy = Strategy.EXACTLY_ONCE
    on_error: str = STOP
    """`STOP`, `LOG`, or empty: an error record goes to `error_topic`. Of a sink what a consumer has for it."""
    error_topic: str = ""
    attempts: int = 1
    backoff_s: float = 1.0
    batch: int = 1_000
    start: str = "earliest"
    only: StepFilter = field(default=StepFilter())
    check: Callable[..., Any] | None = None
    """Of a join: whether these messages are a pair. None: those with different keys are not."""
    is_checked: bool = True
    """Whether a join compares its messages at all."""
    record: str = ""
    """Of a source: what fills the topic."""

    @property
    def is_join(self) -> bool:
        """A step takes one message of each input."""
        return self.kind in (ProcessorKind.JOIN, ProcessorKind.FORK) and len(self.inputs) > 1

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(stream.topic for stream in self.inputs)


@dataclass(frozen=True, slots=True)
class GraphValue:
    name: str
    processors: tuple[Processor, ...]
    provenance: bool = True

    @property
    def positions_topic(self) -> str:
        return own_topic(self.name, POSITIONS)

    @property
    def attempts_topic(self) -> str:
        return own_topic(self.name, ATTEMPTS)

    @property
    def processing(self) -> tuple[Processor, ...]:
        """Those with lanes."""
        return tuple(one for one in self.processors if one.kind not in (ProcessorKind.SINK, ProcessorKind.SOURCE))

    @property
    def outputs(self) -> Mapping[str, str]:
        """Of each topic that a processor writes to, the processor."""
        return {stream.topic: one.name for one in self.processors for stream in one.outputs}


def own_topic(graph: str, kind: str) -> str:
    return f"{graph}.{kind}"


def owner_of(graph: str, processor: str) -> str:
    """The name of the group of a processor, and the beginning of the transactional ids of its lanes. The name of a
    processor has no dot, so no other processor of any graph has the same."""
    return f"{graph}.{processor}"


def lane_id(graph: str, processor: str, partition: int) -> str:
    """The transactional id of a lane."""
    return f"{owner_of(graph, processor)}.{partition}"
