"""Every check at the call, without a database: the field, the value seen and the limit are named."""

import datetime
import decimal
import re
import uuid

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import models

from outbox.conf import parse
from outbox.exceptions import InvalidMessage, OutboxError
from outbox.messages.context import correlation
from outbox.messages.message import as_pairs
from outbox.messages.validation import HEADER_RESERVE_BYTES, RESERVE_BYTES, Validator, message_ids
from outbox.serializers import json

PLAIN = {"MESSAGE_ID_HEADER": None}


def row(topic="heroes", value=None, key="", headers=(), message_id=None, correlation_id=None, **settings):
    return Validator(parse({"DELIVERY": "exactly-once", **settings})).row(
        topic, value, key, as_pairs(headers), message_id, correlation_id
    )


def refusal(**fields):
    with pytest.raises(InvalidMessage) as caught:
        row(**fields)
    return str(caught.value)


# --- topic ---


@pytest.mark.parametrize("topic", ["a", "A.b_c-9", "x" * 249, "...", "a."])
def test_topics_of_kafka_are_accepted(topic):
    assert row(topic).topic == topic


@pytest.mark.parametrize(
    ("topic", "told"),
    [
        ("", 'topic: "" is empty. Pass the name of a Kafka topic.'),
        ("x" * 250, "has 250 characters; Kafka allows 249."),
        (".", "topic: '.' is not a topic name."),
        ("..", "topic: '..' is not a topic name."),
        ("a b", "topic: 'a b' is not a topic name. Kafka allows letters, digits, dots, underscores and hyphens"),
        ("a\n", "topic: 'a\\n' is not a topic name."),
        ("héros", "topic: 'héros' is not a topic name."),
        (None, "topic: None is NoneType, not str."),
        (b"a", "topic: b'a' is bytes, not str."),
    ],
)
def test_other_topics_are_refused(topic, told):
    assert told in refusal(topic=topic)


def test_text_choices_are_text():
    class Topic(models.TextChoices):
        HEROES = "heroes"

    made = row(Topic.HEROES, Topic.HEROES, Topic.HEROES, **PLAIN)
    assert made[:3] == ("heroes",) * 3
    assert [type(field) for field in made[:3]] == [str] * 3


# --- key ---


@pytest.mark.parametrize("key", ["k" * 10, "é" * 5, "😀😀ab"])
def test_key_up_to_the_limit(key):
    assert len(key.encode()) == 10
    assert row(key=key, KEY_MAX_BYTES=10).key == key
    told = refusal(key=key + "x", KEY_MAX_BYTES=10)
    assert "key: " in told
    assert 'has 11 bytes, over OUTBOX["KEY_MAX_BYTES"] = 10. ' in told


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (None, 'key: None is not str. Leave it out or pass "" for a message without a key.'),
        (b"k", "key: b'k' is bytes. The table keeps keys as text: decode it."),
        (7, "key: 7 is int, not str. Pass str(...) of it."),
        (uuid.UUID(int=7), "is UUID, not str. Pass str(...) of it."),
    ],
)
def test_keys_that_are_not_text_are_refused(key, told):
    assert told in refusal(key=key)


# --- value ---


def test_text_bytes_and_none_are_kept_as_they_are():
    assert row(value="text")[2:4] == ("text", None)
    assert row(value="")[2:4] == ("", None)
    assert row(value=None)[2:4] == (None, None)
    for value in (b"\0\xff", bytearray(b"\0\xff"), memoryview(b"\0\xff")):
        made = row(value=value)
        assert made[2:4] == (None, b"\0\xff")
        assert type(made.binary) is bytes


def test_other_values_are_compact_json_by_the_encoder_of_django():
    value = {"name": "Zoë", "n": [1, 2.5, True, None], "on": datetime.date(2026, 1, 2), "d": decimal.Decimal("1.10")}
    assert row(value=value).value == '{"name":"Zoë","n":[1,2.5,true,null],"on":"2026-01-02","d":"1.10"}'
    assert row(value=0).value == "0"
    assert row(value=False).value == "false"


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": {"b": -float("inf")}}, {float("nan"): 1}])
def test_numbers_that_json_does_not_have_are_refused(value):
    told = refusal(value=value)
    assert told.startswith("value: ")
    assert "Out of range float values are not JSON compliant" in told


def test_what_cannot_be_serialized_is_refused():
    told = refusal(value={"hero": object()})
    assert "of type dict cannot be serialized by outbox.serializers.json" in told
    assert "not JSON serializable" in told
    assert "<int of 16,610 bits> of type int cannot be serialized" in refusal(value=10**5000)
    circle = []
    circle.append(circle)
    assert "Circular reference detected" in refusal(value=circle)
    deep = []
    for _ in range(100_000):
        deep = [deep]
    try:
        assert "cannot be serialized" in refusal(value=deep)
    finally:
        while deep:  # or its destruction would go as deep
            deep = deep[0]


@pytest.mark.parametrize("value", [b"x", bytearray(b"x"), memoryview(b"x")])
@pytest.mark.parametrize("settings", [{"BINARY_VALUES": False}, {"DELIVERY": "at-least-once"}])
def test_bytes_are_refused_where_a_goharvest_harvester_may_read(value, settings):
    told = refusal(value=value, **settings)
    assert f"value: 1 bytes of {type(value).__name__}" in told
    assert 'OUTBOX["BINARY_VALUES"] is False' in told
    assert "tombstone" in told


def test_bytes_are_accepted_where_every_harvester_knows_them():
    assert row(value=b"x", DELIVERY="at-least-once", BINARY_VALUES=True).binary == b"x"


# --- serializers ---


def to_bytes(value):
    return json(value).encode()


def to_latin(value):
    return b"\xe9"


def to_nothing(value):
    return None


def to_error(value):
    raise ValueError("no schema")


@pytest.mark.parametrize(("binary", "kept"), [(True, (None, b"[1]")), (False, ("[1]", None))])
def test_a_serializer_may_return_bytes(binary, kept):
    assert row(value=[1], SERIALIZER=f"{__name__}.to_bytes", BINARY_VALUES=binary)[2:4] == kept


def test_serializer_of_bytes_that_are_not_text_needs_binary_values():
    told = refusal(value=[1], SERIALIZER=f"{__name__}.to_latin", BINARY_VALUES=False)
    assert f"value: the output of {__name__}.to_latin, but" in told


def test_serializer_errors_carry_its_path():
    assert f"cannot be serialized by {__name__}.to_error: no schema." in refusal(
        value=[1], SERIALIZER=f"{__name__}.to_error"
    )
    with pytest.raises(OutboxError, match="to_nothing returned None, not str or bytes"):
        row(value=[1], SERIALIZER=f"{__name__}.to_nothing")
    with pytest.raises(ImproperlyConfigured, match="cannot be imported"):
        row(value=[1], SERIALIZER="nowhere.to_json")
    with pytest.raises(ImproperlyConfigured, match="not callable"):
        row(value=[1], SERIALIZER=f"{__name__}.PLAIN")


# --- characters ---


@pytest.mark.parametrize(
    ("character", "what"),
    [
        ("\0", "a NUL character, which PostgreSQL cannot store"),
        ("\ud800", "a lone surrogate, which UTF-8 cannot express"),
    ],
)
def test_characters_that_cannot_be_stored_are_refused_by_field(character, what):
    bad = f"a{character}é"
    assert refusal(key=bad) == f"key: {bad!r} has {what}. Remove it."
    assert refusal(value=bad) == f"value: {bad!r} has {what}. Remove it, or pass the value as bytes."
    assert refusal(headers={bad: "x"}) == f"headers: the name: {bad!r} has {what}. Remove it."
    assert refusal(headers={"x": bad}).startswith(f"headers: the value of 'x': {bad!r} has {what}")
    assert what in refusal(correlation_id=bad)
    with correlation(bad):
        assert what in refusal()


def test_surrogate_within_json_is_refused_and_nul_is_escaped():
    assert "a lone surrogate" in refusal(value={"a": "\ud800"})
    assert row(value={"a": "\0"}).value == '{"a":"\\u0000"}'


def test_surrogate_in_a_long_key():
    assert "a lone surrogate" in refusal(key="\ud800" * 300)


# --- size ---


@pytest.mark.parametrize("value", ["x" * 600, "é" * 300, b"x" * 600])
def test_total_size_up_to_the_limit(value):
    limit = 600 + len("key") + len("abcd") + HEADER_RESERVE_BYTES + RESERVE_BYTES
    fields = {"value": value, "key": "key", "headers": {"ab": "cd"}, **PLAIN}
    assert row(**fields, MAX_MESSAGE_BYTES=1000).size == limit - RESERVE_BYTES
    fields["headers"] = {"ab": "x" * (1000 - limit + 2)}
    assert row(**fields, MAX_MESSAGE_BYTES=1000).size + RESERVE_BYTES == 1000
    fields["headers"] = {"ab": "x" * (1000 - limit + 3)}
    told = refusal(**fields, MAX_MESSAGE_BYTES=1000)
    assert told.startswith("message: 1,001 bytes (value 600, key 3, headers 142, reserve 256), over ")
    assert 'OUTBOX["MAX_MESSAGE_BYTES"] = 1,000' in told


def test_errors_shorten_what_they_show():
    assert len(refusal(key="k" * 100_000)) < 300
    assert len(refusal(topic="k" * 100_000)) < 300
    assert len(refusal(value="\0" * 100_000)) < 400


# --- message id and correlation id ---


def test_message_id_is_a_random_uuid_after_the_given_headers():
    first, second = row(headers={"a": "1"}), row(headers={"a": "1"})
    assert first.names == ("a", "message-id")
    assert uuid.UUID(first.values[1]).version == 4
    assert first.values[1] != second.values[1]


def test_message_ids_are_canonical_random_uuids():
    ids = message_ids(7)
    drawn = [next(ids) for _ in range(500)]
    assert len(set(drawn)) == 500
    assert all(re.fullmatch("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", id) for id in drawn)
    assert {id[19] for id in drawn} == set("89ab")


def test_message_id_may_be_given_as_argument_or_header():
    assert row(message_id="m").values == ("m",)
    assert row(headers={"message-id": "m", "a": "1"})[4:6] == (("message-id", "a"), ("m", "1"))
    assert row(headers={"message-id": "m"}, message_id="m").values == ("m",)
    assert row(message_id="m", MESSAGE_ID_HEADER="id").names == ("id",)
    assert row(MESSAGE_ID_HEADER=None)[4:6] == ((), ())


def test_correlation_id_comes_from_argument_header_or_block():
    assert row(**PLAIN).names == ()
    with correlation("block"):
        assert row(**PLAIN)[4:6] == (("correlation-id",), ("block",))
        assert row(correlation_id="c", **PLAIN).values == ("c",)
        assert row(headers={"correlation-id": "h"}, **PLAIN).values == ("h",)
        assert row(CORRELATION_ID_HEADER=None, **PLAIN).names == ()
        assert row(CORRELATION_ID_HEADER="trace", **PLAIN).names == ("trace",)


@pytest.mark.parametrize(("argument", "header"), [("message_id", "message-id"), ("correlation_id", "correlation-id")])
def test_ids_that_contradict_or_cannot_be_sent_are_refused(argument, header):
    assert refusal(**{argument: ""}) == f'{argument}: "" is empty. Pass a non-empty string or leave it out.'
    assert refusal(**{argument: 5}) == f"{argument}: 5 is int, not str. Pass str(...) of it."
    told = refusal(**{argument: "a"}, headers={header: "b"})
    assert told == f"{argument}: 'a' was given, but the header {header} has 'b'. Pass only one of them."
    setting = f"{argument.upper()}_HEADER"
    told = refusal(**{argument: "a", setting: None})
    assert told == f"{argument}: 'a' was given, but OUTBOX[\"{setting}\"] is empty. Set it or leave the argument out."
