"""From what a function returns to the records of a transaction."""

import json

import pytest

from outbox.core.graphs.outputs import HOPS_MAX, PROVENANCE_HEADER, InvalidOutput, Output, OutputMaker, provenance
from outbox.core.graphs.values import ProcessorKind
from tests.core.graphs.graphs import fetched, processor

FORK = processor(ProcessorKind.FORK, to={"eu": "orders-eu", "us": "orders-us"})


def outputs(returned, of=None, *, hops=False, bytes_max=1_000, consumed=None):
    maker = OutputMaker(of or processor(), provenance=hops, bytes_max=bytes_max)
    return maker.outputs(consumed or (fetched(),), "hash", returned)


@pytest.mark.parametrize(
    ("returned", "values"),
    [
        (None, []),
        ([], []),
        ("a", [b"a"]),
        (b"\xff", [b"\xff"]),
        ({"a": 1}, [b'{"a":1}']),
        (5, [b"5"]),
        (["a", None, b"b"], [b"a", b"b"]),
        (Output(None), [None]),
        (Output("a"), [b"a"]),
    ],
)
def test_values(returned, values):
    assert [found.value for found in outputs(returned)] == values


@pytest.mark.parametrize(
    ("output", "key"),
    [(Output("a"), b"k"), (Output("a", key=None), None), (Output("a", key="x"), b"x"), (Output("a", key=b"x"), b"x")],
)
def test_the_key_is_that_of_the_input_unless_it_is_given(output, key):
    assert outputs(output)[0].key == key


def test_the_header_names_step_and_output():
    assert outputs("a")[0].headers == (("outbox-step", b"hash:priced"),)
    assert [found.headers[-1][1] for found in outputs(["a", "b"])] == [b"hash:priced:0", b"hash:priced:1"]
    found = outputs(Output("a", headers={"x": "y"}))[0]
    assert found.headers == (("x", b"y"), ("outbox-step", b"hash:priced"))


def test_a_fork_writes_what_is_returned_for_each_name():
    assert [(found.topic, found.value) for found in outputs({"eu": "a", "us": ["b", "c"]}, FORK)] == [
        ("orders-eu", b"a"),
        ("orders-us", b"b"),
        ("orders-us", b"c"),
    ]
    assert [found.topic for found in outputs({"us": "a", "eu": None}, FORK)] == ["orders-us"]
    assert outputs({}, FORK) == []


@pytest.mark.parametrize(
    ("returned", "of", "text"),
    [
        ("a", FORK, "returned str, and it has the outputs eu, us"),
        ({"asia": 1}, FORK, "returned the output 'asia'"),
        (object(), None, "cannot be written"),
        ("\ud800", None, "cannot be written"),
        (Output("a", key=5), None, "key of an output is int"),
        (Output("a", headers={"x": 5}), None, "is int"),
        (Output("a", headers=[1]), None, "no pairs of texts"),
        ("x" * 2_000, None, r"has 2,\d+ bytes, and 1,000 are allowed"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_anything_is(returned, of, text):
    with pytest.raises(InvalidOutput, match=text):
        outputs(returned, of)


def test_provenance_has_the_hops_of_all_inputs():
    order = fetched("orders", 3, headers=((PROVENANCE_HEADER, provenance((fetched("raw", 1),))),))
    stock = fetched("stock", 4, headers=((PROVENANCE_HEADER, b"not ours"),))
    expected = [["raw", 0, 1, 5], ["orders", 0, 3, 5], ["stock", 0, 4, 5]]
    assert json.loads(provenance((order, stock))) == expected
    (found,) = outputs("a", hops=True, consumed=(order, stock))
    assert json.loads(dict(found.headers)[PROVENANCE_HEADER]) == expected


def test_provenance_is_bounded():
    message = fetched()
    for offset in range(HOPS_MAX + 5):
        message = fetched("a", offset, headers=((PROVENANCE_HEADER, provenance((message,))),))
    assert len(json.loads(provenance((message,)))) == HOPS_MAX
