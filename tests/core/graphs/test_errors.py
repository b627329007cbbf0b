"""The error record."""

import json

from outbox.core.graphs.errors import error_record, failure_of
from tests.core.graphs.graphs import fetched, processor

PROCESSOR = processor(on_error="topic:errors", strategy="at-least-once")


class OrderInvalid(Exception):
    context = {"order": 5, "what": object}


def failure():
    try:
        try:
            {}["price"]
        except KeyError as error:
            raise OrderInvalid("no price") from error
    except OrderInvalid as error:
        return failure_of(error)


CONSUMED = (fetched(headers=(("h", b"\xff"),)),)


def record(found, consumed=CONSUMED, bytes_max=100_000):
    return error_record(PROCESSOR, "pricing", consumed, "hash", found, 3, bytes_max)


def test_a_failure_has_its_causes_its_trace_and_what_its_author_adds():
    found = failure()
    assert found.type == f"{__name__}.OrderInvalid"
    assert found.text == "no price"
    assert found.causes == (("KeyError", "'price'"),)
    assert "raise OrderInvalid" in found.trace
    assert found.context["order"] == 5


def test_a_cause_that_was_suppressed_is_none():
    error = ValueError()
    error.__context__, error.__suppress_context__ = KeyError(), True
    assert failure_of(error).causes == ()


def test_a_chain_that_bites_its_tail_ends():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert failure_of(first).causes == (("ValueError", "b"),)


def test_the_record_has_what_is_needed_to_repeat_the_step():
    found = record(failure())
    value = json.loads(found.value)
    assert (found.topic, found.key) == ("errors", b"k")
    assert found.headers == (("outbox-step", b"hash:errors"),)
    assert value["processor"] == {
        "graph": "pricing",
        "name": "price",
        "kind": "pipe",
        "in": {"orders": "orders"},
        "out": {"priced": "priced"},
        "errors": "errors",
        "strategy": "at-least-once",
    }
    assert value["inputs"] == [
        {
            "topic": "orders",
            "partition": 0,
            "offset": 0,
            "time_ms": 5,
            "key": "k",
            "value": "v",
            "headers": [["h", {"hex": "ff"}]],
        }
    ]
    assert (value["attempts"], value["step"], value["error"]) == (3, "hash", "no price")
    assert value["context"]["order"] == 5
    assert value["causes"] == [{"type": "KeyError", "error": "'price'"}]


def test_a_record_that_would_be_too_large_leaves_the_values_out():
    found = record(failure(), (fetched(value=b"x" * 50_000),), 20_000)
    assert found.size < 20_000
    assert json.loads(found.value)["inputs"][0]["omitted_bytes"] == 50_001
