"""The work of a consumer without a consumer, in a process of its own: what the measured rates are compared with.

python -m benchmarks.shop.alone bare TOPIC RECORDS      the client reads the topic
python -m benchmarks.shop.alone create SECONDS          the function is called with messages of a list

Each prints its rate, and the seconds of CPU that a message has cost.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from itertools import cycle, islice

_COUNT = 1_000


def bare(topic: str, records: int) -> tuple[float, float]:
    """Key, value and offset of each message. The clock starts when the first messages are there.

    The properties are those of the product. By default the client waits for a second when it has fetched enough in
    advance, which a loop that does nothing notices."""
    from confluent_kafka import Consumer, TopicPartition

    from benchmarks.servers import PARTITIONS
    from outbox.edges.kafka.consumers.group import properties_of

    servers = {"bootstrap.servers": os.environ["OUTBOX_BOOTSTRAP_SERVERS"]}
    properties = properties_of(servers, uuid.uuid4().hex, session_timeout_s=6)
    consumer = Consumer({**properties, "enable.partition.eof": False})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    first = seen = len(consumer.consume(_COUNT, 30.0))
    begun, used_s = time.monotonic(), time.process_time()
    while seen < records:
        found = consumer.consume(_COUNT, 1.0)
        for message in found:
            message.key()
            message.value()
            message.offset()
        seen += len(found)
    seconds, used_s = time.monotonic() - begun, time.process_time() - used_s
    consumer.close()
    return (seen - first) / seconds, used_s / (seen - first)


def create(seconds: float) -> tuple[float, float]:
    """In transactions of as many messages as the consumer's."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.shop.settings"
    import django

    django.setup()
    from django.db import connection, transaction

    from benchmarks.shop import inbox
    from outbox.consumers.message import ConsumedMessage
    from outbox.core.consumers.values import Fetched

    messages = cycle(
        [
            ConsumedMessage(Fetched(inbox.TOPIC, 0, n, 0, f"key-{n}".encode(), value(n), (), 0), "create")
            for n in range(10 * inbox.CREATE_BATCH)
        ]
    )
    connection.ensure_connection()
    handled, begun, used_s = 0, time.monotonic(), time.process_time()
    while time.monotonic() < begun + seconds:
        with transaction.atomic():
            for message in islice(messages, inbox.CREATE_BATCH):
                inbox.create(message)
        handled += inbox.CREATE_BATCH
    return handled / (time.monotonic() - begun), (time.process_time() - used_s) / handled


def value(number: int) -> bytes:
    """Of one message: 100 bytes."""
    return json.dumps({"amount": number, "note": ""}).encode().ljust(100)


def main() -> None:
    kind, *given = sys.argv[1:]
    print(*(bare(given[0], int(given[1])) if kind == "bare" else create(float(given[0]))))


if __name__ == "__main__":
    main()
