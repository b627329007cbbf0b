"""`outbox.identity`, on what clients return."""

import subprocess
import sys
import uuid
from types import SimpleNamespace

import pytest

import outbox
from outbox.messages.consumed import Identity
from tests.support.databases import ROOT

PAIRS = [("a", b"x"), ("outbox-id", b"42")]


@pytest.mark.parametrize(
    "message",
    [
        SimpleNamespace(headers=lambda: PAIRS),  # confluent-kafka
        SimpleNamespace(headers=tuple(PAIRS)),  # kafka-python, aiokafka
        {"headers": PAIRS}["headers"],
        dict(PAIRS),
        [("outbox-id", "7"), ("outbox-id", bytearray(b"42"))],  # an application's own one in front
    ],
)
def test_the_id_of_the_record(message):
    assert outbox.identity(message) == Identity(42, None) == (42, None)


def test_a_header_may_name_the_database():
    database = uuid.uuid4()
    assert outbox.identity([("outbox-id", f"{database}/42".encode())]) == (42, database)


@pytest.mark.parametrize("message", [SimpleNamespace(headers=lambda: None), [], [("Outbox-Id", b"42")], {}])
def test_none_when_nobody_has_said(message):
    assert outbox.identity(message) is None


def test_another_header():
    assert outbox.identity([("x-id", b"9"), *PAIRS], header="x-id") == (9, None)


@pytest.mark.parametrize("value", [b"", b"-1", b"4 2", "\u0664\u0662", b"x/42", b"\xff"])
def test_what_is_no_id_is_told(value):
    with pytest.raises(ValueError, match="not the id of a record") as caught:
        outbox.identity([("outbox-id", value)])
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("message", [3, [1, 2], b"bytes"])
def test_what_has_no_headers_is_told(message):
    with pytest.raises(TypeError, match="neither a message with headers"):
        outbox.identity(message)


def test_a_consumer_needs_neither_settings_nor_a_client():
    code = (
        "import sys, outbox; assert outbox.identity([('outbox-id', b'1')]).id == 1; "
        "assert not {'confluent_kafka', 'django.conf'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
