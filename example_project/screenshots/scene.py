"""The records that the pictures show, and the ages that they seem to have."""

import itertools
import json
import math
import random
import threading
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from confluent_kafka.admin import AdminClient, NewTopic
from django.db import connection, transaction
from django.utils import timezone

import outbox
from example_project.heroes.creation import create_heroes
from example_project.heroes.models import TOPIC
from outbox.models import AuditLogEntry, DeadLetter, Hold, OutboxRecord, Sample

CUSTOMERS = ("customer-2207", "customer-2238", "customer-2269", "customer-2300")
INVOICES, NEWSLETTERS = 6, 1_240
PER_S, EVERY_S = 400, 0.25
SLOWER = 15

# `shipments` is missing.
_TOPICS = {
    "newsletters": {},
    "invoices": {"max.message.bytes": "1000"},
    "profiles": {"cleanup.policy": "compact"},  # rejects messages without a key
}


def create_topics(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    made = admin.create_topics([NewTopic(name, 4, 1, config=given) for name, given in _TOPICS.items()])
    for created in made.values():
        created.result(30)


@contextmanager
def steady_flow() -> Iterator[None]:
    """Creates heroes at a steady rate in the meantime."""
    ended = threading.Event()

    def flow() -> None:
        while not ended.wait(EVERY_S):
            create_heroes([("Ada", "engines")] * int(PER_S * EVERY_S))
        connection.close()

    thread = threading.Thread(target=flow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def stash_invoices() -> None:
    """The second invoice of each customer contains a document, which makes it too large for the topic."""
    noise = random.Random(1)
    for number, (turn, customer) in enumerate(itertools.product(range(INVOICES), CUSTOMERS), 1041):
        invoice = {"invoice": f"2026/{number}", "customer": "Heroes and Sons Ltd", "total": "129.00 EUR"}
        if turn == 1:
            invoice["document"] = "JVBERi0xLjcK" + b64encode(noise.randbytes(1_100)).decode()
        _stash([outbox.Message("invoices", invoice, key=customer, headers={"content-type": "application/json"})])


def shortened(invoice: str) -> str:
    """The invoice after the operator's edit."""
    found = json.loads(invoice)
    return json.dumps({**found, "document": f"https://example.com/invoices/{found['invoice']}"})


def stash_others() -> None:
    _stash([outbox.Message("profiles", {"visitor": "anonymous", "language": "en"})])
    _stash(outbox.Message("shipments", {"order": order}, key=f"order-{order}") for order in range(5120, 5123))
    _stash(
        outbox.Message("newsletters", {"to": f"reader-{number}@example.com", "issue": 12}, key=f"reader-{number}")
        for number in range(NEWSLETTERS)
    )


def _stash(messages: Iterable[outbox.Message]) -> None:
    with transaction.atomic():
        outbox.stash_many(messages)


def write_last_hour() -> None:
    """Samples of a steady flow, of six minutes without Kafka, and of six in which their backlog is delivered."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_get_tuples_inserted(%s::regclass)", [OutboxRecord._meta.db_table])
        stashed = cursor.fetchone()[0]
    now, waiting = timezone.now(), OutboxRecord.objects.count()
    samples = []
    for ago in range(60):
        backlog = waiting if ago < 8 else 35
        backlog += PER_S * 60 * max(0, 6 - abs(ago - 6))
        at = now - timedelta(minutes=ago)
        samples.append(
            Sample(taken_at=at, backlog=backlog, oldest_age_s=0, stashed=stashed, delivered=stashed - backlog)
        )
        stashed -= round(60 * PER_S * (1 + 0.15 * math.sin(ago / 4) + 0.05 * math.sin(ago * 1.7)))
    Sample.objects.all().delete()
    Sample.objects.bulk_create(samples)


def slow_down() -> None:
    """Makes everything look older: a second becomes a quarter of a minute."""
    now = timezone.now()

    def earlier(at: datetime) -> datetime:
        return now - (now - at) * SLOWER

    for rows, column in (
        (OutboxRecord.objects.exclude(kafka_topic=TOPIC), "create_time"),
        (Hold.objects.exclude(stashed_at=None), "stashed_at"),
        (Hold.objects.all(), "since"),
        (DeadLetter.objects.all(), "stashed_at"),
        (DeadLetter.objects.all(), "died_at"),
        (AuditLogEntry.objects.all(), "at"),
    ):
        for at in rows.values_list(column, flat=True).distinct():
            rows.filter(**{column: at}).update(**{column: earlier(at)})
    for kept in [*Hold.objects.all(), *DeadLetter.objects.all()]:
        for attempt in kept.history:
            attempt["at"] = earlier(datetime.fromisoformat(attempt["at"])).isoformat()
        kept.save(update_fields=["history"])
