"""A graph as a picture: Mermaid for documents, lines for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outbox.core.graphs.values import GraphValue, Processor, ProcessorKind, Strategy, TopicStream


def mermaid(graph: GraphValue) -> str:
    """A flowchart: topics are cylinders, processors boxes, errors dotted."""
    topics = _topics(graph)
    ids = {topic: f"t{number}" for number, topic in enumerate(topics, 1)}
    lines = ["flowchart LR", *(f'    {ids[topic]}[("{topic}")]' for topic in topics)]
    for number, one in enumerate(graph.processors, 1):
        box = f"p{number}"
        lines.append(f'    {box}["{one.name}<br>{_kind(one, "<br>")}"]')
        lines += [f"    {ids[stream.topic]} -->{_label(stream)} {box}" for stream in one.inputs]
        lines += [f"    {box} -->{_label(stream)} {ids[stream.topic]}" for stream in one.outputs]
        if one.error_topic:
            lines.append(f"    {box} -.->|errors| {ids[one.error_topic]}")
    return "\n".join(lines)


def text(graph: GraphValue) -> str:
    """One line for each processor, in the order in which messages go through them."""
    rows = [
        (one.name, _kind(one, ", "), _named(one.inputs), _named(one.outputs), _errors(one)) for one in _in_order(graph)
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"graph {graph.name}"]
    for name, kind, inputs, outputs, errors in rows:
        left = f"  {name:{widths[0]}}  {kind:{widths[1]}}  {inputs:{widths[2]}}  →  {outputs:{widths[3]}}  {errors}"
        lines.append(left.rstrip())
    return "\n".join(lines)


def _topics(graph: GraphValue) -> list[str]:
    """Each once, in the order in which they are named."""
    found = dict.fromkeys(stream.topic for one in graph.processors for stream in (*one.inputs, *one.outputs))
    found |= dict.fromkeys(one.error_topic for one in graph.processors if one.error_topic)
    return list(found)


def _kind(one: Processor, between: str) -> str:
    if one.kind is ProcessorKind.SOURCE:
        return f"{one.kind}{between}{one.record}" if one.record else str(one.kind)
    strategy = (
        "" if one.kind is ProcessorKind.SINK or one.strategy is Strategy.EXACTLY_ONCE else f"{between}{one.strategy}"
    )
    return f"{one.kind}{strategy}"


def _label(stream: TopicStream) -> str:
    return f"|{stream.binding}|" if stream.binding != stream.topic else ""


def _named(streams: Sequence[TopicStream]) -> str:
    return ", ".join(
        stream.topic if stream.binding == stream.topic else f"{stream.binding}={stream.topic}" for stream in streams
    )


def _errors(one: Processor) -> str:
    if one.kind is ProcessorKind.SOURCE:
        return ""
    return f"errors: {one.error_topic or one.on_error}"


def _in_order(graph: GraphValue) -> Iterator[Processor]:
    """A processor comes when all that fill its inputs have come; of a cycle, the first that was declared."""
    left, produced = list(graph.processors), set(graph.outputs)
    while left:
        waiting = {stream.topic for one in left for stream in one.outputs} & produced
        ready = [one for one in left if not waiting.intersection(one.topics)] or left[:1]
        for one in ready:
            left.remove(one)
            yield one
