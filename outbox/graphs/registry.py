"""`outbox.Graph`: processors joined by topics, declared by decorators.

Graphs are declared in the module `inbox` of each installed app, which is imported when graphs are asked for: by the
command `outbox_graph`, never by a web process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from sys import _getframe
from typing import Any, TypeVar

from outbox.consumers.registry import MODULE, Consumer, consumer
from outbox.consumers.registry import registered as registered_consumers
from outbox.core.graphs.declaration import GraphGiven, InvalidGraph, ProcessorGiven, graph_of
from outbox.core.graphs.values import GraphValue, ProcessorKind, owner_of

Function = TypeVar("Function", bound=Callable[..., Any])

_graphs: list[Graph] = []


class Graph:
    """Processors that read topics of Kafka and write topics of Kafka, each step exactly once.

    `name` is the beginning of the names of its groups and topics: a graph with another name starts from the beginning.
    `errors` is a topic: the error record of a step that fails goes there, in the place of its outputs. With
    `provenance` each output has a header with topic, partition, offset and time of every message that it was made of.
    `cycles` allows processors whose messages may go round.

    Every processor takes these options. `name`: that of its function unless given; its positions belong to the name.
    `strategy`: "exactly-once", "at-least-once" or "at-most-once". `on_error`: "stop", "log" or "topic:NAME"; without it
    errors go to the topic of the graph, or stop the lane if the graph has none. `attempts`: how often a step is tried
    in all, first again after `backoff` seconds and then after longer pauses. `batch`: the largest number of steps in
    one transaction. `start`: "earliest" or "latest". `topics`, `types` (of the header `type`) and `where`, a function:
    which messages the function is called with; the others pass without an output.

    Mistakes are reported together, by `value` and by `manage.py outbox_graph check`.
    """

    def __init__(self, name: str, *, errors: str | None = None, provenance: bool = True, cycles: bool = False) -> None:
        self.name = name
        self._errors, self._provenance, self._cycles = errors, provenance, cycles
        self._given: list[ProcessorGiven] = []
        caller = _getframe(1)
        self.declared_at = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        # Its module may be imported again.
        _graphs[:] = [one for one in _graphs if one.declared_at != self.declared_at or one.name != name]
        _graphs.append(self)

    def pipe(self, topic: str, *, to: str | Mapping[str, str], **options: Any) -> Callable[[Function], Function]:
        """Each message of `topic` is a step. The function gets it, and returns what is written to `to`: a value, an
        `outbox.Output`, a list of these, or None for nothing."""
        return self._processor(ProcessorKind.PIPE, topic, to, options)

    def join(
        self, inputs: Mapping[str, str], *, to: str | Mapping[str, str], check: Any = None, **options: Any
    ) -> Callable[[Function], Function]:
        """A step takes the next message of each topic: they are paired by position. The function gets them by the names
        of `inputs`. A pair whose messages have different keys stops the lane; `check` is a function that says which
        messages are a pair, or False."""
        return self._processor(ProcessorKind.JOIN, inputs, to, {**options, "check": check})

    def alts(
        self, topics: Sequence[str], *, to: str | Mapping[str, str], **options: Any
    ) -> Callable[[Function], Function]:
        """A step takes the next message of whichever topic has one. The choice survives a crash."""
        return self._processor(ProcessorKind.ALTS, topics, to, options)

    def fork(
        self, inputs: str | Mapping[str, str], *, to: Mapping[str, str], **options: Any
    ) -> Callable[[Function], Function]:
        """As `pipe`, or as `join` if `inputs` is a mapping. The function returns a mapping with any of the names of
        `to`; what it returns for them is written to their topics, visible together."""
        return self._processor(ProcessorKind.FORK, inputs, to, options)

    def sink(self, topic: str, *, name: str = "", **options: Any) -> Callable[[Function], Function]:
        """A consumer, see `outbox.consumer`, which takes the options. It is run with the graph."""

        def register(function: Function) -> Function:
            found = name or _name_of(function)
            self._given.append(
                ProcessorGiven(
                    kind=ProcessorKind.SINK,
                    name=found,
                    inputs=topic,
                    function=function,
                    on_error=options.get("on_error"),
                )
            )
            return consumer(topic, name=owner_of(self.name, found), **options)(function)

        return register

    def source(self, topic: str, *, record: str = "", name: str = "") -> None:
        """A topic that is filled from outside of the graph, by `outbox.stash` for instance. `record` is the type of its
        records, for the picture."""
        given = ProcessorGiven(kind=ProcessorKind.SOURCE, name=name or f"to-{topic}", inputs=topic, record=record)
        self._given.append(given)

    @property
    def value(self) -> GraphValue:
        """The graph as a plain value. Raises `InvalidGraph` with every mistake."""
        given = GraphGiven(
            name=self.name,
            processors=self._given,
            errors=self._errors,
            provenance=self._provenance,
            cycles=self._cycles,
        )
        return graph_of(given)

    @property
    def sinks(self) -> list[Consumer]:
        names = {owner_of(self.name, str(given.name)) for given in self._given if given.kind is ProcessorKind.SINK}
        return [one for name, one in registered_consumers().items() if name in names]

    def _processor(
        self, kind: ProcessorKind, inputs: Any, to: Any, options: Mapping[str, Any]
    ) -> Callable[[Function], Function]:
        def register(function: Function) -> Function:
            name = options.get("name") or _name_of(function)
            rest = {key: value for key, value in options.items() if key != "name"}
            self._given.append(ProcessorGiven(kind=kind, name=name, inputs=inputs, to=to, function=function, **rest))
            return function

        return register


def registered() -> Mapping[str, Graph]:
    """Every graph by its name, once the modules `inbox` of all apps are imported."""
    from django.utils.module_loading import autodiscover_modules

    autodiscover_modules(MODULE)
    found: dict[str, Graph] = {}
    for graph in _graphs:
        if (other := found.setdefault(graph.name, graph)) is not graph:
            text = (
                f"Two graphs have the name {graph.name!r}: at {other.declared_at} and at {graph.declared_at}. They "
                "would share their positions. Name one of them otherwise."
            )
            raise InvalidGraph([text])
    return dict(sorted(found.items()))


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", ""))
