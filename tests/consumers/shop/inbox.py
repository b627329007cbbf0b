"""The topic is named by the environment, because every test has one of its own."""

import os
import re

import outbox
from tests.consumers.shop import deeds
from tests.consumers.shop.models import Effect

TOPIC = os.environ.get("SHOP_TOPIC", "orders")


def effect(consumer, message):
    return Effect(
        consumer=f"{consumer} replay" if message.is_replay else consumer,
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        key=message.key,
        value=message.value,
        attempt=message.attempt,
    )


@outbox.consumer(
    TOPIC,
    name="shop.record",
    batch=int(os.environ.get("SHOP_BATCH", "20")),
    on_error=os.environ.get("SHOP_ON_ERROR", "stop"),
    backoff=0.1,
    attempts=int(os.environ.get("SHOP_ATTEMPTS", "2")),
    timeout_s=float(os.environ.get("SHOP_TIMEOUT", "60")),
)
def record(message):
    effect("shop.record", message).save()
    outbox.stash("receipts", {"order": message.value, "step": message.step}, key=message.key or "")
    if message.value == os.environ.get("SHOP_ABORTS"):
        os.abort()
    if message.value == os.environ.get("SHOP_FAILS"):
        raise ValueError(f"the order {message.value} is refused")
    if message.attempt == 1 and int(message.value) % 10 == int(os.environ.get("SHOP_FAILS_AT_FIRST", "-1")):
        raise ValueError("the first attempt fails")
    deeds.do(message)


@outbox.consumer(TOPIC, name="shop.many", many=True, batch=50, durable=False)
def record_many(messages):
    Effect.objects.bulk_create([effect("shop.many", message) for message in messages])


@outbox.consumer(TOPIC, name="shop.deduped", dedupe=lambda message: message.value, batch=20)
def record_deduped(message):
    effect("shop.deduped", message).save()


@outbox.consumer(re.compile(re.escape(TOPIC) + r"\.\w+"), name="shop.pattern")
def record_pattern(message):
    effect("shop.pattern", message).save()
