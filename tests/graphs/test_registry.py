"""`outbox.Graph`: what decorators make of functions, and what functions get."""

from types import SimpleNamespace

import pytest

from outbox.core.consumers.values import Fetched, Partition, Polled
from outbox.core.graphs.declaration import InvalidGraph
from outbox.core.graphs.lane import LaneLife
from outbox.core.graphs.values import ProcessorKind, Strategy
from outbox.graphs import registry
from outbox.graphs.assignment import GraphAssignment
from outbox.graphs.handle import StepCalls
from outbox.graphs.registry import Graph
from outbox.runtime.threads import THREADS
from tests.core.graphs.graphs import fetched, join, processor


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch):
    monkeypatch.setattr(registry, "_graphs", [])


def test_decorators_return_the_function_and_name_the_processor_after_it():
    graph = Graph("g", errors="g.errors")

    @graph.pipe("orders", to="priced", strategy="at-least-once")
    @graph.fork("raw", to={"eu": "eu", "us": "us"}, name="split")
    def price(message):
        return message.value

    assert price(SimpleNamespace(value=5)) == 5
    graph.source("orders", record="Order")
    split, pipe, source = graph.value.processors
    assert (split.name, pipe.name, source.kind) == ("split", "price", ProcessorKind.SOURCE)
    assert (pipe.strategy, pipe.error_topic) == (Strategy.AT_LEAST_ONCE, "g.errors")


def test_mistakes_are_reported_when_the_graph_is_asked_for_and_not_at_import():
    graph = Graph("g")

    @graph.pipe("or ders", to="priced", batch=0)
    def price(message):
        """Nothing."""

    with pytest.raises(InvalidGraph) as raised:
        _ = graph.value
    assert len(raised.value.mistakes) == 2


def test_a_module_that_is_imported_again_declares_its_graph_again():
    for _ in range(2):
        graph = Graph("g")
    assert registry.registered() == {"g": graph}


def test_two_graphs_need_two_names():
    first, second = Graph("g"), Graph("g")
    assert first.declared_at == second.declared_at, "one line declares them, as an import does that is repeated"
    Graph("g")
    with pytest.raises(InvalidGraph, match="Two graphs have the name 'g'"):
        registry.registered()


def test_an_unknown_option_is_an_error_at_once():
    with pytest.raises(TypeError, match="bach"):
        Graph("g").pipe("orders", to="priced", bach=5)(lambda message: None)


def test_all_messages_of_a_step_have_its_hash_and_attempt():
    found = {}

    def reserve(order, stock):
        found.update(order=order, stock=stock)

    calls = StepCalls(join_of(reserve), "g.reserve")
    calls.call((fetched("orders", 1), fetched("stock", 2)), "hash", 3)
    assert {(message.step, message.attempt) for message in found.values()} == {("hash", 3)}
    assert [(message.topic, message.offset) for message in found.values()] == [("orders", 1), ("stock", 2)]


def join_of(function, **options):
    from dataclasses import replace

    return replace(join(**options), function=function)


@pytest.mark.parametrize(
    ("options", "called"),
    [
        ({}, True),
        ({"types": ["Placed"]}, True),
        ({"types": ["Paid"]}, False),
        ({"topics": ["stock"]}, False),
        ({"where": lambda message: message.value == "v"}, True),
        ({"where": lambda message: message.value == "w"}, False),
    ],
)
def test_a_filter_decides_whether_the_function_is_called(options, called):
    calls = StepCalls(processor(**options), "g.price")
    step = (fetched(headers=(("type", b"Placed"),)),)
    found = []
    calls._processor = SimpleNamespace(
        only=calls._processor.only, function=found.append, is_join=False, inputs=calls._processor.inputs
    )
    assert calls.call(step, "hash", 1) is None
    assert bool(found) is called


@pytest.mark.parametrize(
    ("options", "keys", "is_mismatch"),
    [
        ({}, (b"a", b"a"), False),
        ({}, (b"a", b"b"), True),
        ({"check": False}, (b"a", b"b"), False),
        ({"check": lambda order, stock: order.key < stock.key}, (b"a", b"b"), False),
        ({"check": lambda order, stock: order.key < stock.key}, (b"b", b"a"), True),
    ],
)
def test_which_messages_are_a_pair(options, keys, is_mismatch):
    calls = StepCalls(join(**options), "g.reserve")
    assert calls.mismatch((fetched("orders", key=keys[0]), fetched("stock", key=keys[1]))) is is_mismatch


# ---- what a process has of a processor


class Worker:
    def __init__(self, partition):
        self.partition, self.read_from, self.delivered = partition, None, 0
        self.received = []
        self.lane = SimpleNamespace(
            inputs=SimpleNamespace(received=self.received.extend, full=frozenset()),
            life=SimpleNamespace(state=LaneLife.PLACED),
            reason="",
            positions={},
        )
        self.doubted = 0

    def start(self):
        """Nothing."""

    def order(self):
        found, self.read_from = self.read_from, None
        return found

    def doubt(self):
        self.doubted += 1

    def end(self, *, is_abandoned=False):
        self.lane.life.state = LaneLife.ENDED


def assigned(of=None, partitions=(0,)):
    of = of or processor()
    workers = {}

    def make(number):
        return workers.setdefault(number, Worker(number))

    assignment = GraphAssignment(of, THREADS.condition("graph"), make)
    assignment.assigned([Partition(topic, number) for topic in of.topics for number in partitions])
    return assignment, workers


def message(offset):
    return Fetched("orders", 0, offset, 1, None, b"", (), 0)


def test_messages_from_before_the_client_was_told_where_to_read_are_dropped():
    assignment, workers = assigned()
    assignment.received(Polled([message(7)]))
    workers[0].read_from = {"orders": 3}
    assignment.received(Polled([message(8)]))
    assert workers[0].received == []
    assert assignment.orders().start == {Partition("orders", 0): 3}
    assignment.received(Polled([message(3)]))
    assert [found.offset for found in workers[0].received] == [3]


def test_a_lane_begins_when_all_of_its_topics_are_there():
    of = join()
    workers = []
    assignment = GraphAssignment(
        of, THREADS.condition("graph"), lambda number: workers.append(number) or Worker(number)
    )
    assignment.assigned([Partition("orders", 0), Partition("orders", 1), Partition("stock", 1)])
    assert workers == [1]


def test_a_full_input_is_paused_and_read_again_later():
    assignment, workers = assigned()
    workers[0].read_from = {"orders": 0}
    assignment.orders()
    workers[0].lane.inputs.full = frozenset({"orders"})
    assert assignment.orders().pause == [Partition("orders", 0)]
    assert assignment.orders().pause == []
    workers[0].lane.inputs.full = frozenset()
    assert assignment.orders().resume == [Partition("orders", 0)]


def test_a_partition_that_was_paused_when_it_was_taken_back_is_resumed():
    """The client keeps it paused."""
    assignment, workers = assigned()
    workers[0].read_from = {"orders": 0}
    assignment.orders()
    workers[0].lane.inputs.full = frozenset({"orders"})
    assignment.orders()
    assignment.revoked([Partition("orders", 0)])
    workers.clear()
    assignment.assigned([Partition("orders", 0)])
    workers[0].read_from = {"orders": 0}
    assert assignment.orders().resume == [Partition("orders", 0)]


def test_a_rebalance_ends_every_lane():
    assignment, workers = assigned(partitions=(0, 1))
    assignment.revoked([Partition("orders", 0), Partition("orders", 1)])
    assert {worker.lane.life.state for worker in workers.values()} == {LaneLife.ENDED}
    assert assignment.states == {}
