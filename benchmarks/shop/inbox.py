"""The consumers that are measured. `benchmarks.consume` starts one process for each, or for several slow ones.

Hooks of `on_commit` note the time after COMMIT, by the machine's monotonic clock. When the process ends, it writes the
notes into the file BENCH_NOTES.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

from django.db import connection, transaction
from django.db.models import F

import outbox
from benchmarks.shop.models import Account, Payment

TOPIC = os.environ.get("BENCH_TOPIC", "bench")
NOTHING_BATCH, CREATE_BATCH, BULK_BATCH = 10_000, 100, 1_000
ACCOUNTS = 100
SLOW_MS, SLOW_BATCHES = (1, 10, 100), (1, 10, 100)

_postponed: set[tuple[int, int]] = set()
_notes: list[str] = []
"""Consumers of one process append to it at the same time."""


@atexit.register
def _write_notes() -> None:
    Path(os.environ.get("BENCH_NOTES", os.devnull)).write_text("\n".join(_notes))


@outbox.consumer(TOPIC, name="nothing", batch=NOTHING_BATCH)
def nothing(message: Any) -> None:
    pass


@outbox.consumer(TOPIC, name="nothing-many", batch=NOTHING_BATCH, many=True)
def nothing_many(messages: Any) -> None:
    pass


@outbox.consumer(TOPIC, name="create-alone", batch=1)
@outbox.consumer(TOPIC, name="create-alone-not-durable", batch=1, durable=False)
@outbox.consumer(TOPIC, name="create", batch=CREATE_BATCH)
def create(message: Any) -> None:
    Payment.objects.create(order=message.key, amount=message.json()["amount"])


@outbox.consumer(TOPIC, name="bulk", batch=BULK_BATCH, many=True)
def bulk(messages: Any) -> None:
    Payment.objects.bulk_create([Payment(order=message.key, amount=message.json()["amount"]) for message in messages])


@outbox.consumer(TOPIC, name="create-poison", batch=CREATE_BATCH)
def create_poison(message: Any) -> None:
    """One of all messages fails, whenever it is tried."""
    if (message.partition, message.offset) == (0, 100):
        raise ValueError("this message always fails")
    create(message)


@outbox.consumer(TOPIC, name="create-not-yet", batch=CREATE_BATCH)
def create_not_yet(message: Any) -> None:
    """One message in twenty is postponed once."""
    place = message.partition, message.offset
    if crc32(message.raw.value) % 20 == 0 and place not in _postponed:
        _postponed.add(place)
        raise outbox.NotYet("the first time", retry_s=0.1)
    create(message)


@outbox.consumer(TOPIC, name="every-other-fails", batch=CREATE_BATCH, attempts=1)
def every_other_fails(message: Any) -> None:
    if message.offset % 2:
        raise ValueError("every other message fails")


@outbox.consumer(TOPIC, name="always-fails", batch=CREATE_BATCH)
def always_fails(message: Any) -> None:
    raise ValueError("every message fails")


@outbox.consumer(TOPIC, name="account", batch=CREATE_BATCH)
def account(message: Any) -> None:
    Account.objects.filter(pk=1 + message.offset % ACCOUNTS).update(total=F("total") + 1)


@outbox.consumer(TOPIC, name="arrive", batch=CREATE_BATCH)
def arrive(message: Any) -> None:
    Payment.objects.create(order=message.key, amount=int(message.value))
    transaction.on_commit(partial(_arrived, message.value))


def _arrived(number: str) -> None:
    _notes.append(f"{number} {time.monotonic()}")


def slow_name(milliseconds: int, batch: int) -> str:
    return f"slow-{milliseconds}-{batch}"


def _slow(name: str, milliseconds: int) -> Callable[[Any], None]:
    def slow(message: Any) -> None:
        if not connection.run_on_commit:
            transaction.on_commit(partial(_ended, name, time.monotonic()))
        time.sleep(milliseconds / 1000)

    return slow


def _ended(name: str, begun: float) -> None:
    _notes.append(f"{name} {time.monotonic() - begun}")


for _milliseconds in SLOW_MS:
    for _batch in SLOW_BATCHES:
        _name = slow_name(_milliseconds, _batch)
        outbox.consumer(TOPIC, name=_name, batch=_batch)(_slow(_name, _milliseconds))
