"""``manage.py consume_heroes``: a consumer that knows nothing of the outbox, and stores the messages.

Its position is the last stored offset, written with the rows in one transaction, so it needs no consumer group. A
message that is in Kafka twice has two offsets and is stored twice.
"""

import json
import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction
from django.db.models import Max

from example_project.heroes.models import TOPIC, Received
from outbox import conf
from outbox.exceptions import missing_extra

BATCH_MAX = 500
POLL_S = 0.5
METADATA_S = 5.0


class Command(BaseCommand):
    help = "Reads the topic of heroes as a read_committed consumer and stores the messages until Ctrl-C."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--count", type=int, help="stops after this many messages")
        parser.add_argument(
            "--timeout", type=float, help="stops after this many seconds; fails if --count is not reached"
        )
        parser.add_argument("--topic", default=TOPIC, help=f"the topic ({TOPIC})")
        parser.add_argument("--json", action="store_true", help="prints one JSON object")

    def handle(
        self, *args: Any, count: int | None, timeout: float | None, topic: str, json: bool, **options: Any
    ) -> None:
        ends = float("inf") if timeout is None else time.monotonic() + timeout
        consumer = _consumer()
        received = 0
        try:
            if _assign(consumer, topic, ends):
                while time.monotonic() < ends and (count is None or received < count):
                    wanted = BATCH_MAX if count is None else min(BATCH_MAX, count - received)
                    received += _store(consumer.consume(wanted, POLL_S))
        except KeyboardInterrupt:
            self.stderr.write("Ctrl-C stopped the consumer.")
        finally:
            consumer.close()
        self._print({"received": received, "topic": topic}, as_json=json)
        if timeout is not None and count is not None and received < count:
            raise CommandError(
                f"The consumer received {received} of {count} messages from {topic!r} within {timeout:g} s. "
                "Raise --timeout."
            )

    def _print(self, report: dict[str, Any], *, as_json: bool) -> None:
        line = json.dumps(report) if as_json else " ".join(f"{name}={value}" for name, value in report.items())
        self.stdout.write(line)


def _consumer() -> Any:
    try:
        from confluent_kafka import Consumer
    except ImportError as error:
        missing_extra("harvest", error)
    properties = conf.current().kafka.client_properties
    if not properties.get("bootstrap.servers"):
        raise CommandError('No brokers are set. Set OUTBOX_BOOTSTRAP_SERVERS, e.g. "localhost:9092".')
    return Consumer(
        {
            **properties,
            "group.id": "heroes",  # the client insists on a name; no group is joined
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "reconnect.backoff.ms": 1000,  # each attempt that fails is logged
        }
    )


def _assign(consumer: Any, topic: str, ends: float) -> bool:
    """Reads every partition from its last stored offset on. Waits if the topic does not exist yet."""
    from confluent_kafka import OFFSET_BEGINNING, KafkaException, TopicPartition

    stored = Received.objects.filter(topic=topic).values("partition").annotate(last=Max("offset"))
    last = {row["partition"]: row["last"] for row in stored.values("partition", "last")}
    while time.monotonic() < ends:
        try:
            partitions = (
                consumer.list_topics(topic, timeout=min(METADATA_S, max(0.1, ends - time.monotonic())))
                .topics[topic]
                .partitions
            )
        except KafkaException:  # brokers that cannot be reached yet
            partitions = {}
        if partitions:
            starts = {number: last[number] + 1 if number in last else OFFSET_BEGINNING for number in partitions}
            consumer.assign([TopicPartition(topic, number, offset) for number, offset in starts.items()])
            return True
        time.sleep(min(POLL_S, max(0.0, ends - time.monotonic())))
    return False


def _store(messages: list[Any]) -> int:
    rows = []
    for message in messages:
        if message.error():
            if message.error().retriable() or not message.error().fatal():
                continue
            raise CommandError(f"Kafka reports: {message.error()}")
        rows.append(
            Received(
                topic=message.topic(),
                partition=message.partition(),
                offset=message.offset(),
                key=_text(message.key()),
                value=_text(message.value()),
            )
        )
    if rows:
        with transaction.atomic():
            Received.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


def _text(data: bytes | None) -> str | None:
    """PostgreSQL's text takes no NUL character."""
    return None if data is None else data.decode("utf-8", "backslashreplace").replace("\0", "\\x00")
