"""Message as a value, and the shapes of headers."""

import dataclasses
import enum

import pytest

import outbox.messages.context
import outbox.messages.message
from outbox import Message
from outbox.exceptions import InvalidMessage, OutboxError
from outbox.messages.message import as_pairs


def test_message_is_a_frozen_value():
    message = Message("heroes", "v", key="k", headers={"a": "1"})
    assert message == Message("heroes", "v", key="k", headers=[("a", "1")])
    assert hash(message) == hash(dataclasses.replace(message))
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.key = "other"


def test_only_topic_and_value_are_positional():
    with pytest.raises(TypeError):
        Message("heroes", "v", "k")


def test_later_changes_of_the_headers_do_not_reach_the_message():
    headers = {"a": "1"}
    message = Message("heroes", headers=headers)
    headers["a"] = "2"
    assert message.headers == (("a", "1"),)


@pytest.mark.parametrize(
    "headers",
    [
        [("a", "1"), ("b", "2"), ("a", "3")],
        (["a", "1"], ["b", "2"], ["a", "3"]),
        (pair for pair in [("a", "1"), ("b", "2"), ("a", "3")]),
    ],
    ids=["tuples", "lists", "generator"],
)
def test_headers_repeat_and_keep_their_order(headers):
    assert as_pairs(headers) == (("a", "1"), ("b", "2"), ("a", "3"))


def test_subclasses_of_str_become_str():
    class Name(str, enum.Enum):  # noqa: UP042  (what Django's TextChoices are)
        SOURCE = "source"

    [(name, value)] = as_pairs({Name.SOURCE: Name.SOURCE})
    assert (type(name), name, type(value), value) == (str, "source", str, "source")


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        (5, "headers: 5 is int. Pass a mapping or a list of (name, value) pairs."),
        ("ab", "headers: 'ab' is str. Pass a mapping or a list of (name, value) pairs."),
        (["ab"], "headers: 'ab' is not a pair. Pass (name, value), both strings."),
        ([("a", "b", "c")], "headers: ('a', 'b', 'c') is not a pair. Pass (name, value), both strings."),
        ({5: "x"}, "headers: the name 5 is int, not str. Pass a string."),
        ({"a": 5}, "headers: the value of 'a' is 5, int, not str. Pass str(...) of it."),
        ({"a": b"x"}, "headers: the value of 'a' is b'x', bytes, not str. The table keeps header values as text"),
        ({"a": None}, "headers: the value of 'a' is None, NoneType, not str. The table keeps no null header"),
        ({"": "x"}, "headers: the name of the header with the value 'x' is empty. Pass a name."),
        ([["", "x"]], "headers: the name of the header with the value 'x' is empty. Pass a name."),
    ],
)
def test_wrong_headers_are_named(headers, told):
    with pytest.raises(InvalidMessage) as caught:
        Message("heroes", headers=headers)
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize("headers", [10**5000, {"a": 10**5000}, {10**5000: "a"}, [10**5000]], ids=range(4))
def test_numbers_too_long_to_be_written_are_refused_like_others(headers):
    with pytest.raises(InvalidMessage, match="<int of 16,610 bits>"):
        Message("heroes", headers=headers)


def test_an_error_within_an_iterable_of_headers_is_the_callers():
    def pairs():
        yield "a", "1"
        raise TypeError("a mistake of the caller")

    with pytest.raises(TypeError, match="a mistake of the caller"):
        Message("heroes", headers=pairs())


def test_invalid_message_is_an_outbox_error_and_a_value_error():
    assert issubclass(InvalidMessage, OutboxError)
    assert issubclass(InvalidMessage, ValueError)


def test_public_names_survive_the_import_of_their_modules():
    assert outbox.correlation is outbox.messages.context.correlation
    assert outbox.Message is outbox.messages.message.Message
