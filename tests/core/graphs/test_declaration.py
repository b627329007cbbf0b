"""Every mistake of a graph is named at once; a graph without one is a plain value."""

import pytest

from outbox.core.graphs.declaration import GraphGiven, InvalidGraph, graph_of, mistakes
from outbox.core.graphs.values import ProcessorKind, Strategy, TopicStream
from tests.core.graphs.graphs import PAIR, given, graph, join, one, pair, processor


async def later(message):
    """Async."""


def yields(message):
    yield message


def wrong(*processors, name="pricing", **options):
    return mistakes(GraphGiven(name=name, processors=processors, **options))


MISTAKES = {
    "names": (given(name="a.b"), "its name is not 1 to 80 letters"),
    "a topic": (given(inputs="or ders"), "input 'or ders' has no name that Kafka allows"),
    "two topics of a pipe": (given(inputs=["a", "b"]), "it takes one topic"),
    "no output": (given(to=None), "it has no output"),
    "an output's name": (given(to="pri ced"), "output 'pri ced' has no name that Kafka allows"),
    "a join without names": (given(ProcessorKind.JOIN, ["orders", "stock"]), "its inputs are no mapping"),
    "a join of one": (
        given(ProcessorKind.JOIN, {"order": "orders"}, function=one),
        "it has 1 inputs and needs two at least",
    ),
    "a join of a topic with itself": (
        given(ProcessorKind.JOIN, {"order": "orders", "stock": "orders"}, function=pair),
        "input 'orders' is there 2 times",
    ),
    "a name that is no argument": (
        given(ProcessorKind.JOIN, {"order": "orders", "in stock": "stock"}, function=lambda **found: None),
        "input 'in stock' is no name of an argument",
    ),
    "an alts of names": (given(ProcessorKind.ALTS, PAIR, function=pair), "its inputs are no list"),
    "a fork of one": (given(ProcessorKind.FORK, to="priced"), "to= is no mapping"),
    "a fork to one topic twice": (
        given(ProcessorKind.FORK, to={"eu": "priced", "us": "priced"}),
        "output 'priced' is there 2 times",
    ),
    "a sink that writes": (given(ProcessorKind.SINK, to="priced"), "a sink writes to no topic"),
    "a source's record": (given(ProcessorKind.SOURCE, "orders", record=5), "record=5 is no text"),
    "strategy": (given(strategy="twice"), "strategy='twice' is none of 'exactly-once', 'at-least-once'"),
    "at-most-once that repeats": (given(strategy="at-most-once", attempts=3), "at-most-once never does"),
    "on_error": (given(on_error="ignore"), "on_error='ignore' is none of"),
    "an error topic": (given(on_error="topic:a b"), "on_error='topic:a b' names no topic"),
    "attempts": (given(attempts=0), "attempts=0 is no whole number from 1 to 1,000"),
    "batch": (given(batch=True), "batch=True is no whole number from 1 to 100,000"),
    "backoff": (given(backoff=0), "backoff=0 is no number of seconds"),
    "start": (given(start="middle"), "start='middle' is neither"),
    "check of a pipe": (given(check=one), "check= compares the messages of a join"),
    "topics": (given(topics="orders"), "topics='orders' is no list of texts"),
    "types of a join": (
        given(ProcessorKind.JOIN, PAIR, function=pair, types=["a"]),
        "types= would skip one message of a pair",
    ),
    "no function": (given(function=None), "the function is None, which is no function"),
    "async": (given(function=later), "the function is async"),
    "yield": (given(function=yields), "the function has a yield"),
    "arguments": (given(function=pair), "the function cannot be called with the message alone"),
    "arguments of a join": (
        given(ProcessorKind.JOIN, PAIR),
        "the function cannot be called with the arguments order, stock",
    ),
    "where": (given(where=5), "where= is 5, which is no function"),
    "own topics": (given(to="pricing.positions"), "the graph itself writes to 'pricing.positions'"),
    "its own errors": (given(on_error="topic:orders"), "it reads 'orders', to which its own errors go"),
    "itself": (given(to="orders"), "The processors price → price form a cycle"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name):
    processor, text = MISTAKES[name]
    found = wrong(processor)
    assert any(text in one for one in found), found


def test_all_mistakes_are_named_at_once():
    found = wrong(given(name="", inputs="a b", batch=0), given(to=None, start=1), name="a b", errors="c d", cycles=1)
    assert len(found) == 8, found
    with pytest.raises(InvalidGraph) as raised:
        graph_of(GraphGiven(name="", processors=()))
    assert len(raised.value.mistakes) == 2


def test_two_processors_have_two_names():
    assert wrong(given(), given(inputs="stock")) == ["2 processors have the name 'price'. Give each its own name=."]


def test_a_graph_of_sources_has_no_processor():
    assert wrong(given(ProcessorKind.SOURCE, "orders"))[0].startswith("It has no processor.")


def test_a_cycle_is_named_and_can_be_wanted():
    first, second = given(to="b"), given(inputs="b", to="orders", name="back")
    assert wrong(first, second)[0].startswith("The processors price → back → price form a cycle")
    assert wrong(first, second, cycles=True) == []


def test_graphs_that_are_not_connected_are_no_mistake():
    assert wrong(given(), given(inputs="a", to="b", name="other")) == []


def test_the_order_of_inputs_does_not_matter():
    swapped = processor(ProcessorKind.ALTS, ["shop", "web"])
    assert (
        swapped.inputs
        == processor(ProcessorKind.ALTS, ["web", "shop"]).inputs
        == (
            TopicStream("shop", "shop"),
            TopicStream("web", "web"),
        )
    )


def test_errors_go_to_the_topic_of_the_graph_unless_the_processor_says_otherwise():
    found = graph(
        given(), given(name="b", on_error="log", to="c"), given(name="d", on_error="topic:e", to="f"), errors="errors"
    )
    assert [(one.on_error, one.error_topic) for one in found.processors] == [("", "errors"), ("log", ""), ("", "e")]
    assert graph(given()).processors[0].on_error == "stop"


def test_a_join_checks_its_pairs_unless_it_is_told_not_to():
    assert (join().check, join().is_checked) == (None, True)
    assert (join(check=False).check, join(check=False).is_checked) == (None, False)
    assert join(check=pair).check is pair


def test_what_has_lanes():
    found = graph(
        given(ProcessorKind.SOURCE, "orders", name="app"),
        given(),
        given(ProcessorKind.SINK, "priced", to=None, name="pay"),
    )
    assert [one.name for one in found.processing] == ["price"]
    assert (found.positions_topic, found.attempts_topic) == ("pricing.positions", "pricing.attempts")
    assert found.processors[1].strategy is Strategy.EXACTLY_ONCE
