"""The message that a consumer's function gets."""

import hashlib
import json
from datetime import UTC, datetime
from uuid import UUID

import pytest

import outbox
from outbox.consumers.message import ConsumedMessage
from outbox.core import steps
from outbox.core.consumers.values import Fetched


def message(key=b"42", value=b'{"a": 1}', headers=(), timestamp_ms=1_700_000_000_123, **options):
    return ConsumedMessage(Fetched("orders", 3, 17, 5, key, value, headers, timestamp_ms), "shop.record", **options)


def test_a_message_has_what_kafka_says():
    found = message(attempt=2)
    assert (found.topic, found.partition, found.offset, found.key, found.attempt) == ("orders", 3, 17, "42", 2)
    assert (found.value, found.json()) == ('{"a": 1}', {"a": 1})
    assert found.time == datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
    assert found.raw.value == b'{"a": 1}'
    assert str(found) == "orders[3] offset 17"


def test_a_message_without_key_value_and_time():
    found = message(key=None, value=None, timestamp_ms=-1, decoder=json.loads)
    assert (found.key, found.value, found.time) == (None, None, None)
    with pytest.raises(ValueError, match=r"orders\[3\] offset 17 is a tombstone"):
        found.json()


def test_nothing_is_decoded_before_it_is_asked_for():
    found = message(key=b"\xff", value=b"\xff")
    assert found.offset == 17
    with pytest.raises(UnicodeDecodeError):
        _ = found.key
    with pytest.raises(UnicodeDecodeError):
        _ = found.value


def test_a_decoder_makes_the_value():
    assert message(decoder=json.loads).value == {"a": 1}
    assert message(value=b"\xff", decoder=bytes).value == b"\xff"
    assert message(decoder=bytes).json() == {"a": 1}


def test_headers_are_pairs_in_their_order():
    found = message(headers=(("a", b"1"), ("b", None), ("a", b"2"), ("c", b"\xff")))
    assert found.headers == (("a", "1"), ("b", None), ("a", "2"), ("c", "\udcff"))
    assert (found.header("a"), found.header("b"), found.header("z")) == ("2", None, None)


def test_the_identity_is_that_of_the_record_that_was_stashed():
    database = UUID(int=7)
    found = message(headers=(("outbox-id", f"{database}/12".encode()),))
    assert found.identity == outbox.identity(found) == (12, database)
    assert message().identity is None


def test_the_step_is_the_same_for_every_attempt_and_another_for_every_other_message():
    assert message().step == message(attempt=2, value=b"edited").step
    assert len(message().step) == 32
    others = {
        steps.step(*given)
        for given in [
            ("a", "t", 0, 0), ("a", "t", 0, 1), ("a", "t", 1, 0), ("a", "u", 0, 0), ("b", "t", 0, 0),
            ("a 1 t", "", 0, 0), ("a", "t 0", 0, 0), ("a", "t", 10, 0), ("at", "", 0, 0), ("", "at", 0, 0),
        ]
    }  # fmt: skip
    assert len(others) == 10


def test_the_step_does_not_change_between_releases():
    text = hashlib.blake2b(b"11 shop.record 6 orders 3 " + (17).to_bytes(8, "big"), digest_size=16).hexdigest()
    assert message().step == text
