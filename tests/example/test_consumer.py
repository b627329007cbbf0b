"""The example's consumer on a real Kafka."""

import json
from io import StringIO
from typing import Any

import pytest
from confluent_kafka import Producer
from django.core.management import CommandError, call_command
from django.test import override_settings

from example_project.heroes.models import Received
from tests.support.topics import create_topic

pytestmark = pytest.mark.django_db(transaction=True)


def produce(servers: str, topic: str, values: list[str | None], *, commit: bool) -> None:
    producer = Producer({"bootstrap.servers": servers, "transactional.id": f"{topic}-writer"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value=value, key="k")
    assert producer.flush(30) == 0
    (producer.commit_transaction if commit else producer.abort_transaction)(30)


def consume(servers: str, topic: str, *arguments: str) -> dict[str, Any]:
    out = StringIO()
    with override_settings(OUTBOX={"BOOTSTRAP_SERVERS": servers}):
        call_command("consume_heroes", "--topic", topic, "--timeout", "30", "--json", *arguments, stdout=out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def stored(topic: str) -> list[tuple[str | None, str | None]]:
    return list(Received.objects.filter(topic=topic).order_by("offset").values_list("key", "value"))


def test_only_committed_messages_are_stored_and_each_once(bootstrap_servers: str) -> None:
    topic = create_topic(bootstrap_servers, partitions=1)
    produce(bootstrap_servers, topic, ["aborted"], commit=False)
    produce(bootstrap_servers, topic, ["one", None, "nul\0"], commit=True)
    assert consume(bootstrap_servers, topic, "--count", "2") == {"received": 2, "topic": topic}
    assert stored(topic) == [("k", "one"), ("k", None)]
    assert consume(bootstrap_servers, topic, "--count", "1")["received"] == 1
    assert stored(topic) == [("k", "one"), ("k", None), ("k", "nul\\x00")]


def test_too_few_messages_are_an_error(bootstrap_servers: str) -> None:
    topic = create_topic(bootstrap_servers, partitions=1)
    produce(bootstrap_servers, topic, ["one"], commit=True)
    with pytest.raises(CommandError, match=r"received 1 of 2 messages"):
        consume(bootstrap_servers, topic, "--count", "2", "--timeout", "3")
    assert stored(topic) == [("k", "one")]
