"""From what somebody wrote to a graph: every mistake of it at once, before anything is asked of a server. Pure."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outbox.core.consumers.values import DEAD_LETTER, HOLD
from outbox.core.graphs.values import (
    ATTEMPTS,
    LOG,
    POSITIONS,
    STOP,
    GraphValue,
    Processor,
    ProcessorKind,
    StepFilter,
    Strategy,
    TopicStream,
    own_topic,
)

ERROR_TOPIC = "topic:"
_GRAPH = re.compile(r"[A-Za-z0-9._-]{1,150}")
_PROCESSOR = re.compile(r"[A-Za-z0-9_-]{1,80}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NAMES = "letters, digits, dots, underscores and hyphens"
_BATCH_MAX, _ATTEMPTS_MAX = 100_000, 1_000
_SECONDS = (0.1, 86_400.0)
_STARTS = ("earliest", "latest")


class InvalidGraph(ValueError):
    """The graph could not work as it is declared; `mistakes` names everything that is wrong with it."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__(" ".join(mistakes))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorGiven:
    """The arguments of a declaration, as somebody wrote them."""

    kind: ProcessorKind
    name: Any
    inputs: Any
    to: Any = None
    function: Any = None
    strategy: Any = Strategy.EXACTLY_ONCE
    on_error: Any = None
    attempts: Any = 1
    backoff: Any = 1.0
    batch: Any = 1_000
    start: Any = "earliest"
    topics: Any = ()
    types: Any = ()
    where: Any = None
    check: Any = None
    record: Any = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphGiven:
    name: Any
    processors: Sequence[ProcessorGiven]
    errors: Any = None
    provenance: Any = True
    cycles: Any = False


def graph_of(given: GraphGiven) -> GraphValue:
    """Raises `InvalidGraph`."""
    found = mistakes(given)
    if found:
        raise InvalidGraph(found)
    processors = tuple(_processor(one, given.errors) for one in given.processors)
    return GraphValue(given.name, processors, given.provenance)


def mistakes(given: GraphGiven) -> list[str]:
    """Each names the processor, what was seen and the remedy."""
    found = list(_of_graph(given))
    for one in given.processors:
        found += [f"{one.kind} {one.name!r:.100}: {text}" for text in _Mistakes(given, one).all()]
    if not found:
        found += _of_shape(given)
    return found


def is_topic(name: Any) -> bool:
    return isinstance(name, str) and bool(_TOPIC.fullmatch(name)) and name not in (".", "..")


# ---- the graph


def _of_graph(given: GraphGiven) -> Iterator[str]:
    if not isinstance(given.name, str) or not _GRAPH.fullmatch(given.name):
        yield (
            f"The name {given.name!r:.100} is not 1 to 150 {_NAMES}. Name the graph so that its topics can be named "
            "after it."
        )
    if given.errors is not None and not is_topic(given.errors):
        yield f"errors={given.errors!r:.100} is no name of a topic. Set it to 1 to 249 {_NAMES}."
    for option in ("provenance", "cycles"):
        if not isinstance(getattr(given, option), bool):
            yield f"{option}={getattr(given, option)!r:.100} is neither True nor False."
    if all(one.kind is ProcessorKind.SOURCE for one in given.processors):
        yield "It has no processor. Declare one with pipe, join, alts, fork or sink."
    counted = Counter(one.name for one in given.processors if isinstance(one.name, str))
    for name, count in counted.items():
        if count > 1:
            yield f"{count} processors have the name {name!r:.100}. Give each its own name=."


def _of_shape(given: GraphGiven) -> Iterator[str]:
    """What only the whole graph tells."""
    own = {own_topic(given.name, kind) for kind in (POSITIONS, ATTEMPTS)}
    processors = [_processor(one, given.errors) for one in given.processors]
    for one in processors:
        used = [*one.topics, *(stream.topic for stream in one.outputs), one.error_topic]
        for topic in sorted(own.intersection(used)):
            yield f"{one.kind} {one.name!r}: the graph itself writes to {topic!r}. Use another topic."
        if one.error_topic in one.topics:
            yield (
                f"{one.kind} {one.name!r}: it reads {one.error_topic!r}, to which its own errors go. Set on_error= to "
                "another topic."
            )
    if not given.cycles and (cycle := _cycle(processors)):
        yield (
            f"The processors {' → '.join(cycle)} form a cycle: their messages may go round for ever. Break the cycle, "
            "or set cycles=True."
        )


def _cycle(processors: Sequence[Processor]) -> list[str]:
    """The names of one; it begins and ends with the same."""
    readers: dict[str, list[Processor]] = {}
    for one in processors:
        for topic in one.topics if one.kind is not ProcessorKind.SOURCE else ():
            readers.setdefault(topic, []).append(one)
    done: set[str] = set()
    path: list[str] = []

    def visit(one: Processor) -> list[str]:
        if one.name in path:
            return [*path[path.index(one.name) :], one.name]
        if one.name in done:
            return []
        path.append(one.name)
        for stream in one.outputs:
            for reader in readers.get(stream.topic, ()):
                if found := visit(reader):
                    return found
        done.add(path.pop())
        return []

    return next(filter(None, map(visit, processors)), [])


# ---- one processor


class _Mistakes:
    def __init__(self, graph: GraphGiven, given: ProcessorGiven) -> None:
        self._graph, self._given = graph, given

    def all(self) -> Iterator[str]:
        given = self._given
        if not isinstance(given.name, str) or not _PROCESSOR.fullmatch(given.name):
            yield (
                "its name is not 1 to 80 letters, digits, underscores and hyphens. Set name=, which must stay the "
                "same: the positions belong to it."
            )
        yield from self._inputs()
        if given.kind is ProcessorKind.SOURCE:
            if not isinstance(given.record, str):
                yield f"record={given.record!r:.100} is no text. Name the type of the records."
            return
        yield from self._outputs()
        yield from self._values()
        yield from self._filters()
        yield from self._function(given.function, "the function")

    def _inputs(self) -> Iterator[str]:
        given, streams = self._given, list(_streams(self._given.inputs))
        if given.kind is ProcessorKind.JOIN and not isinstance(given.inputs, Mapping):
            yield 'its inputs are no mapping. Write {"name": "topic", …}: the function gets each message by its name.'
            return
        if given.kind is ProcessorKind.ALTS and (
            isinstance(given.inputs, str | Mapping) or not _is_listed(given.inputs)
        ):
            yield 'its inputs are no list. Write ["topic", "topic"].'
            return
        if given.kind in (ProcessorKind.PIPE, ProcessorKind.SINK, ProcessorKind.SOURCE) and not isinstance(
            given.inputs, str
        ):
            yield (
                f"it takes one topic, and {given.inputs!r:.100} is {type(given.inputs).__name__}. Name one topic, or "
                "declare a join or an alts."
            )
            return
        if given.kind in (ProcessorKind.JOIN, ProcessorKind.ALTS) and len(streams) < 2:
            yield f"it has {len(streams)} inputs and needs two at least. Declare a pipe for one."
        yield from _of_streams(streams, "input", by_name=isinstance(given.inputs, Mapping))

    def _outputs(self) -> Iterator[str]:
        given, streams = self._given, list(_streams(self._given.to))
        if given.kind is ProcessorKind.SINK:
            if given.to is not None:
                yield "a sink writes to no topic. Declare a pipe."
            return
        if given.kind is ProcessorKind.FORK and not isinstance(given.to, Mapping):
            yield 'to= is no mapping. Write to={"name": "topic", …}: the function returns a mapping of these names.'
            return
        if given.to is None or not streams:
            yield "it has no output. Set to= to a topic, or to a mapping of several."
            return
        yield from _of_streams(streams, "output", by_name=isinstance(given.to, Mapping))

    def _values(self) -> Iterator[str]:
        given = self._given
        if given.strategy not in tuple(Strategy):
            yield f"strategy={given.strategy!r:.100} is none of {', '.join(repr(str(one)) for one in Strategy)}."
        elif given.strategy == Strategy.AT_MOST_ONCE and given.attempts not in (1, None):
            yield f"attempts={given.attempts!r:.100} would repeat a step, and at-most-once never does. Set attempts=1."
        for option, most in (("batch", _BATCH_MAX), ("attempts", _ATTEMPTS_MAX)):
            number = getattr(given, option)
            if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
                yield f"{option}={number!r:.100} is no whole number from 1 to {most:,}."
        low, high = _SECONDS
        is_number = isinstance(given.backoff, int | float) and not isinstance(given.backoff, bool)
        if not is_number or not low <= given.backoff <= high:
            yield f"backoff={given.backoff!r:.100} is no number of seconds from {low:g} to {high:g}."
        if given.start not in _STARTS:
            yield f'start={given.start!r:.100} is neither "earliest" nor "latest".'
        yield from self._on_error()
        if given.check is not None and (
            given.kind not in (ProcessorKind.JOIN, ProcessorKind.FORK) or isinstance(given.inputs, str)
        ):
            yield "check= compares the messages of a join, and this is none. Leave it out."
        elif given.check not in (None, False):
            yield from self._function(given.check, "check=")

    def _on_error(self) -> Iterator[str]:
        on_error = self._given.on_error
        allowed = (HOLD, STOP, DEAD_LETTER) if self._given.kind is ProcessorKind.SINK else (STOP, LOG)
        if on_error is None or on_error in allowed:
            return
        if not isinstance(on_error, str) or not on_error.startswith(ERROR_TOPIC):
            names = ", ".join(f'"{name}"' for name in allowed)
            yield f'on_error={on_error!r:.100} is none of {names} and "topic:NAME".'
        elif not is_topic(on_error[len(ERROR_TOPIC) :]):
            yield f"on_error={on_error!r:.100} names no topic that Kafka allows."

    def _filters(self) -> Iterator[str]:
        given = self._given
        for option in ("topics", "types"):
            found = getattr(given, option)
            if not _is_listed(found) or not all(isinstance(one, str) for one in found):
                yield f'{option}={found!r:.100} is no list of texts. Write {option}=["…"].'
            elif found and isinstance(given.inputs, Mapping):
                yield (
                    f"{option}= would skip one message of a pair, and every later pair would be wrong. Use where=, "
                    "which gets the whole pair."
                )
        if given.where is not None:
            yield from self._function(given.where, "where=")

    def _function(self, function: Any, what: str) -> Iterator[str]:
        called = (function, type(function).__call__) if callable(function) else (function,)
        if any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in called):
            yield f"{what} is async. Write it with def."
        elif any(map(inspect.isgeneratorfunction, called)):
            yield f"{what} has a yield. Return a list instead."
        elif not callable(function) or isinstance(function, type):
            yield f"{what} is {function!r:.100}, which is no function."
        else:
            yield from self._call(function, what)

    def _call(self, function: Any, what: str) -> Iterator[str]:
        inputs = self._given.inputs
        names = [str(name) for name in inputs] if isinstance(inputs, Mapping) else []
        try:
            signature = inspect.signature(function)
        except ValueError:
            return  # a function of C, which does not say
        try:
            signature.bind(**dict.fromkeys(names)) if names else signature.bind(object())
        except TypeError as error:
            wanted = f"the arguments {', '.join(names)}" if names else "the message alone"
            yield f"{what} cannot be called with {wanted}: {error}. Change its arguments."


def _of_streams(streams: Sequence[TopicStream], what: str, *, by_name: bool) -> Iterator[str]:
    for stream in streams:
        if by_name and not (isinstance(stream.binding, str) and stream.binding.isidentifier()):
            yield f"{what} {stream.binding!r:.100} is no name of an argument. Use letters, digits and underscores."
        if not is_topic(stream.topic):
            yield f"{what} {stream.topic!r:.100} has no name that Kafka allows: 1 to 249 {_NAMES}."
    for topic, count in Counter(stream.topic for stream in streams if isinstance(stream.topic, str)).items():
        if count > 1:
            yield f"{what} {topic!r:.100} is there {count} times. Name each topic once."


def _streams(given: Any) -> Iterator[TopicStream]:
    if isinstance(given, Mapping):
        yield from (TopicStream(binding, topic) for binding, topic in given.items())
    elif isinstance(given, str):
        yield TopicStream(given, given)
    elif isinstance(given, Iterable):
        yield from (TopicStream(topic, topic) for topic in given)


def _is_listed(given: Any) -> bool:
    return isinstance(given, list | tuple | set | frozenset)


def _processor(given: ProcessorGiven, errors: Any) -> Processor:
    """To be called when it has no mistakes."""
    inputs = tuple(sorted(_streams(given.inputs), key=lambda stream: stream.topic))
    if given.kind is ProcessorKind.SOURCE:
        outputs = tuple(_streams(given.inputs))
        return Processor(given.name, given.kind, (), outputs, record=given.record)
    of_graph = HOLD if given.kind is ProcessorKind.SINK else STOP if errors is None else ERROR_TOPIC + errors
    on_error = of_graph if given.on_error is None else given.on_error
    is_topic_of_errors = on_error.startswith(ERROR_TOPIC)
    return Processor(
        given.name,
        given.kind,
        inputs,
        tuple(_streams(given.to)) if given.to is not None else (),
        given.function,
        Strategy(given.strategy),
        "" if is_topic_of_errors else on_error,
        on_error[len(ERROR_TOPIC) :] if is_topic_of_errors else "",
        given.attempts,
        float(given.backoff),
        given.batch,
        given.start,
        StepFilter(frozenset(given.topics), frozenset(given.types), given.where),
        given.check or None,
        given.check is not False,
    )
