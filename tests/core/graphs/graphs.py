"""What the tests of graphs declare and fetch."""

from outbox.core.consumers.values import Fetched
from outbox.core.graphs.declaration import GraphGiven, ProcessorGiven, graph_of
from outbox.core.graphs.lane import GraphLane
from outbox.core.graphs.values import ProcessorKind


def one(message):
    """A function of a pipe."""


def pair(order, stock):
    """A function of a join."""


PAIR = {"order": "orders", "stock": "stock"}


def given(kind=ProcessorKind.PIPE, inputs="orders", *, name="price", to="priced", function=one, **options):
    return ProcessorGiven(kind=kind, name=name, inputs=inputs, to=to, function=function, **options)


def processor(kind=ProcessorKind.PIPE, inputs="orders", **options):
    return graph(given(kind, inputs, **options)).processors[0]


def join(**options):
    return processor(ProcessorKind.JOIN, PAIR, function=pair, **options)


def alts(**options):
    return processor(ProcessorKind.ALTS, ["web", "shop"], **options)


def graph(*processors, **options):
    return graph_of(GraphGiven(name="pricing", processors=processors, **options))


def fetched(topic="orders", offset=0, *, partition=0, key=b"k", value=b"v", headers=(), time=5):
    return Fetched(topic, partition, offset, 1, key, value, headers, time)


def many(topic, *offsets):
    return [fetched(topic, offset) for offset in offsets]


def placed(of, positions=None, begun=None):
    """A lane that begins at offset 0 of each topic."""
    lane = GraphLane(of)
    lane.placed(positions or dict.fromkeys(of.topics, 0), begun)
    return lane


def offsets(steps):
    return [tuple((message.topic, message.offset) for message in step) for step in steps]
