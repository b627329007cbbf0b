"""How the user's function is called, and what it may not return."""

import functools
import logging
from contextvars import copy_context

import pytest
from django.db.utils import ConnectionHandler

import outbox
from outbox.consumers import handle, registry
from outbox.consumers.handle import Handling
from outbox.core.consumers import blame
from outbox.core.consumers.values import Fetched
from outbox.edges.postgres.consumers.transactions import Transaction
from outbox.exceptions import InvalidConsumer
from outbox.messages.context import stash_alias

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


@pytest.fixture
def other(monkeypatch, django_db_blocker):
    """A database that needs no server."""
    found = ConnectionHandler(
        {alias: {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"} for alias in ("default", "other")}
    )
    monkeypatch.setattr(handle, "connections", found)
    with django_db_blocker.unblock():
        for alias in found:
            with found[alias].cursor() as cursor:
                cursor.execute("CREATE TABLE t (x integer)")
        yield found
        for alias in found:
            found[alias].connection.close()  # Django keeps a database in memory open


def test_a_write_through_another_alias_is_logged_once(other, caplog):
    statements = ["SELECT 1", "INSERT INTO t VALUES (1)", "/* c */ update t SET x = 2", "DELETE FROM t"]

    def function(message):
        for alias in other:
            with other[alias].cursor() as cursor:
                for statement in statements[: message.offset + 1]:
                    cursor.execute(statement)

    handled = handling(function)
    with caplog.at_level(logging.WARNING):
        handled([MESSAGE], 1)
        assert not caplog.records, "it has read"
        for _ in range(2):
            handled([MESSAGE._replace(offset=3)], 1)
    assert [record.getMessage() for record in caplog.records] == ["write_outside consumer=shop.record alias=other"]
    assert other["other"].execute_wrappers == []


def test_what_the_function_stashes_belongs_to_the_alias_of_the_consumer(other):
    found = []

    def function(message):
        found.append(stash_alias.get())
        raise LookupError

    with pytest.raises(LookupError):
        handling(function, alias="other")([MESSAGE], 1)
    assert (found, stash_alias.get()) == (["other"], None)


# ---- the id of a repeated message


def identified(dedupe, headers=(), **given):
    outbox.consumer("orders", name="shop.record", dedupe=dedupe)(plain(lambda message: None))
    found = Handling(registry._consumers["shop.record"], "default", **given)
    return found.identify(Fetched("orders", 0, 5, 0, b"k", b"v", headers, 0))


def test_the_id_is_the_header_of_stash_or_what_the_function_returns():
    headers = (("message-id", b"one"), ("other", b"two"))
    assert identified(True, headers) == "one"
    assert identified(True, headers, id_header="other") == "two"
    assert identified(lambda message: f"{message.key}/{message.value}") == "k/v"


@pytest.mark.parametrize("dedupe", [True, lambda message: None, lambda message: "", lambda message: 7, lambda m: "x\0"])
def test_a_message_without_an_id_is_a_failure(dedupe):
    with pytest.raises(ValueError, match="has no id by which it is known"):
        identified(dedupe)


def test_in_a_replay_stash_does_nothing_and_the_function_may_know():
    found = []

    def function(message):
        found.append(message.is_replay)
        if message.is_replay:
            found.append((outbox.stash("t", object()), outbox.stash_many(iter([1, 2]))))

    def call():
        consumer = registry._consumers["shop.record"]
        Handling(consumer, "default", is_replay=True, stashes=False)([MESSAGE], 1)
        found.append(outbox.stash("t", "of a function of on_commit"))

    handling(function)([MESSAGE], 1)
    copy_context().run(call)
    assert found == [False, True, (0, [0, 0]), 0]
