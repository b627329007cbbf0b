"""How the user's function is called, and what it may not return."""

import functools

import pytest

import outbox
from outbox.consumers import registry
from outbox.consumers.handle import Handling
from outbox.core.consumers import blame
from outbox.core.consumers.values import Fetched
from outbox.edges.postgres.consumers.transactions import Transaction
from outbox.exceptions import InvalidConsumer

MESSAGE = Fetched("orders", 0, 0, 0, None, b"1", (), 0)


@pytest.fixture(autouse=True)
def no_others(monkeypatch):
    monkeypatch.setattr(registry, "_consumers", {})


def handling(function, alias="default"):
    outbox.consumer("orders", name="shop.record")(function)
    return Handling(registry._consumers["shop.record"], alias)


def plain(function):
    def called(message):
        return function(message)

    return called


@plain
async def coroutine(message): ...


@plain
async def async_generator(message):
    yield message


@plain
def generator(message):
    yield message


@pytest.mark.parametrize(
    ("function", "kind"),
    [(coroutine, "coroutine"), (async_generator, "async_generator"), (generator, "generator")],
)
def test_a_result_that_has_yet_to_run_stops_the_consumer(function, kind):
    """A plain wrapper hides it from the declaration. The positions would move, and nothing would be done."""
    with pytest.raises(InvalidConsumer, match=f"'shop.record' returned a {kind} and did nothing") as raised:
        handling(function)([MESSAGE], 1)
    found = Transaction("default", consumer="shop.record", session_timeout_s=1).failure(raised.value)
    assert isinstance(found, blame.Alike)
    assert "async_to_sync" in found.remedy


@pytest.mark.parametrize("result", [None, 1, [1], "text"])
def test_any_other_result_is_left_alone(result):
    handling(functools.partial(lambda result, message: result, result))([MESSAGE], 1)
