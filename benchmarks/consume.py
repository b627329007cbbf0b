"""Rows about consumers: rates beside the same work without a consumer, and the time from one service to another.

A consumer is a process of its own, with one thread. Its rate is how far its positions move in the database, as another
connection sees them, from the first COMMIT on. A base of a ratio is measured in the same round, just before.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.command import Command, harvesting
from benchmarks.drains import EXACTLY, Drains
from benchmarks.latency import write
from benchmarks.report import ratio, say
from benchmarks.servers import MANAGE, PARTITIONS, ROOT, Database, cpu_s, database, new_topic
from benchmarks.shop.alone import value

MESSAGES = 1_000_000
FEW = 200_000
"""Of the brief form."""
CREATE_BATCH, ACCOUNTS = 100, 100
NOTHING = {"nothing": "function of one message", "nothing-many": "function of a list"}
SLOW = (1, 10, 100)
"""Milliseconds of a function, and messages of a batch."""
WEB_PAUSE_S = 0.005
SETTLE_S = 1.0
_START_TIMEOUT_S = 60.0
_HOLDING_TIMEOUT_S = 600.0
_POLL_S = 0.005
_SETTINGS = {"DJANGO_SETTINGS_MODULE": "benchmarks.shop.settings"}
_PAYMENTS = "SELECT count(*) FROM shop_payment"
_MOVED = "SELECT coalesce(sum(next), 0)::bigint FROM outbox_position WHERE consumer = %s"


@dataclass(frozen=True)
class Rate:
    """Of messages."""

    per_s: float
    cpu_s: float
    """Seconds of CPU that the process has used for each."""

    def __str__(self) -> str:
        return f"{self.cpu_s * 1e6:,.1f} µs of CPU each"


def _said(name: str, rate: Rate) -> Rate:
    say(f"{name}: {rate.per_s:,.0f}/s, {rate}")
    return rate


@dataclass(frozen=True)
class Shop:
    """The service that consumes, and the topic that it reads."""

    drains: Drains
    database: Database
    folder: Path
    topic: str
    messages: int
    seconds: float
    """Of one measurement at most."""

    @property
    def notes(self) -> Path:
        return self.folder / "notes"

    @property
    def environment(self) -> dict[str, str]:
        return {**self.database.environment, **_SETTINGS, "BENCH_TOPIC": self.topic, "BENCH_NOTES": str(self.notes)}

    def alone(self, *arguments: str) -> Rate:
        """The same work without a consumer."""
        command = [sys.executable, "-m", "benchmarks.shop.alone", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, text=True, check=True)
        return _said(arguments[0], Rate(*map(float, done.stdout.split())))

    @contextlib.contextmanager
    def consuming(self, *names: str) -> Iterator[Command]:
        """A process that begins at the first message, in a group of its own. Its notes are complete afterwards."""
        self.database.connection.execute("TRUNCATE outbox_position, outbox_held, shop_payment")
        group = {"OUTBOX_NAME": f"bench-{uuid.uuid4().hex[:8]}"}
        process = Command([*MANAGE, "consume", *names], {**self.environment, **group})
        try:
            yield process
        finally:
            process.stop()

    def rates(self, *names: str, seconds: float = 0.0, settle_s: float = SETTLE_S) -> list[Rate]:
        """Of these consumers at the same time. The CPU is that of all. At first the client fetches in advance, which
        costs more than the few messages that a slow function handles meanwhile."""
        with self.consuming(*names) as process:
            self.wait_for(process, lambda: all(self.moved(name) for name in names))
            time.sleep(settle_s)
            begun, before = time.monotonic(), [self.moved(name) for name in names]
            used_s = cpu_s(process.process.pid)
            give_up_at = begun + (seconds or self.seconds)
            while time.monotonic() < give_up_at and self.moved(names[0]) < self.messages:
                time.sleep(_POLL_S)
            handled = [self.moved(name) - at for name, at in zip(names, before, strict=True)]
            took_s, used_s = time.monotonic() - begun, cpu_s(process.process.pid) - used_s
        each_s = used_s / max(1, sum(handled))
        return [_said(name, Rate(count / took_s, each_s)) for name, count in zip(names, handled, strict=True)]

    def rate(self, name: str, settle_s: float = SETTLE_S) -> Rate:
        return self.rates(name, settle_s=settle_s)[0]

    def moved(self, name: str) -> int:
        """How many messages its positions have passed."""
        return int(self.database.one(_MOVED, name))

    def wait_for(self, process: Command, condition: Callable[[], bool], timeout_s: float = _START_TIMEOUT_S) -> None:
        give_up_at = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > give_up_at or process.process.poll() is not None:
                sys.exit(f"The consumer has not done what was waited for ({process.process.poll()=}):\n{process.log}")
            time.sleep(_POLL_S)

    def noted(self) -> list[list[str]]:
        """The words of each line."""
        return [line.split() for line in self.notes.read_text().splitlines()]


def rows(drains: Drains) -> None:
    with _shop(drains, MESSAGES, 3.0) as shop:
        _rates(shop)
        _failing(shop)
        _slow(shop, SLOW)
        _web(shop, 5.0)
        _chain(shop, 5.0, (1, PARTITIONS), (200, 1_000))


def brief(drains: Drains) -> None:
    with _shop(drains, FEW, 1.0) as shop:
        _nothing(shop, *next(iter(NOTHING.items())))
        _chain(shop, 3.0, (1,), (200,))


@contextlib.contextmanager
def _shop(drains: Drains, messages: int, seconds: float, keys: int = 1_000) -> Iterator[Shop]:
    with TemporaryDirectory() as folder, database(drains.server, drains.servers) as place:
        environment = {**place.environment, **_SETTINGS}
        subprocess.run([*MANAGE, "migrate", "shop", "--run-syncdb", "-v0"], env=environment, check=True)
        topic = new_topic(drains.servers)
        _produce(drains.servers, topic, messages, keys)
        yield Shop(drains, place, Path(folder), topic, messages, seconds)


def _produce(servers: str, topic: str, messages: int, keys: int = 1_000) -> None:
    """With keys, and with the header that a harvester adds."""
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 50, "compression.type": "lz4",
         "queue.buffering.max.messages": 2 * messages}
    )  # fmt: skip
    for number in range(messages):
        headers = [("outbox-id", f"00000000-0000-0000-0000-000000000000/{number}".encode())]
        producer.produce(topic, value(number), key=f"key-{number % keys}", headers=headers)
        if not number % 10_000:
            producer.poll(0)
    assert producer.flush(60) == 0


@contextlib.contextmanager
def _pinned(place: Database) -> Iterator[None]:
    """A transaction elsewhere keeps every dead row."""
    with place.connect() as other, other.transaction():
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1")
        yield


# ---- rates


def _rates(shop: Shop) -> None:
    free = {
        **{name: _nothing(shop, name, label) for name, label in NOTHING.items()},
        "create": _create(shop),
        "bulk": _row(shop, "consumer, bulk_create of 1,000", shop.rate("bulk"), ">= 50,000"),
        "create-alone": _row(shop, "consumer, create(), one a transaction", shop.rate("create-alone")),
    }
    _row(shop, "consumer, create(), one a transaction, durable=False", shop.rate("create-alone-not-durable"))
    with _pinned(shop.database):
        for name, rate in free.items():
            pinned = shop.rate(name, settle_s=0.0 if name in NOTHING else SETTLE_S)
            _ratio(shop, f"  of the rate without a pinned xmin, {name}", pinned, rate, ">= 0.9")


def _nothing(shop: Shop, name: str, label: str) -> Rate:
    bare = _row(shop, "client alone: key, value, offset", shop.alone("bare", shop.topic, str(shop.messages)))
    found = _row(shop, f"consumer that does nothing, {label}", shop.rate(name, settle_s=0.0))
    _ratio(shop, f"  of the client alone, {label}", found, bare, ">= 0.5")
    return found


def _create(shop: Shop) -> Rate:
    label = f"{CREATE_BATCH} a transaction"
    alone = _row(shop, f"create() of messages of a list, {label}", shop.alone("create", str(shop.seconds)))
    found = _row(shop, f"consumer, create(), {label}", shop.rate("create"))
    _ratio(shop, "  of create() of messages of a list", found, alone, ">= 0.9")
    return found


def _row(shop: Shop, name: str, rate: Rate, goal: str = "") -> Rate:
    shop.drains.table.row(name, "messages/s", goal).add(rate.per_s, str(rate))
    return rate


def _ratio(shop: Shop, name: str, found: Rate, base: Rate, goal: str) -> None:
    row = shop.drains.table.row(name, "", goal, ratio)
    row.add(found.per_s / base.per_s, f"by CPU {base.cpu_s / found.cpu_s:.2f}")


def _failing(shop: Shop) -> None:
    """Counted are the rows that the function has written: a message that is held has moved the position."""
    base = _written(shop, "create")
    for name, label, goal in (
        ("create-poison", "one poison message among 1,000 keys", ">= 0.9"),
        ("create-not-yet", "one message in twenty postponed once", ">= 0.5"),
    ):
        row = shop.drains.table.row(f"  of the rate without failures, {label}", "", goal, ratio)
        row.add(_written(shop, name) / base)
    with shop.consuming("always-fails") as process:
        shop.wait_for(process, lambda: bool(_held(shop)))
        time.sleep(2 * shop.seconds)
        held = _held(shop)
    shop.drains.table.row("function that always fails: messages held", "", "<= 25").add(held)


def held_keys(drains: Drains, keys: int) -> None:
    """The resident memory of a consumer that holds more and more keys. Every second message fails."""
    first, retried_s = keys // 10, 10.0
    messages = 2 * (keys + PARTITIONS)  # each partition ends with one that fails, or with one that does not
    with _shop(drains, messages, 0.0, keys=messages) as shop, shop.consuming("every-other-fails") as process:
        found = {}
        for held in (first, keys):
            shop.wait_for(process, lambda held=held: _held(shop) >= held, _HOLDING_TIMEOUT_S)
            found[f"{held:,} held keys"] = process.resident_mb
        shop.database.connection.execute("UPDATE outbox_held SET wanted = 'retry'")
        found["while they are tried again"], give_up_at = 0.0, time.monotonic() + retried_s
        while time.monotonic() < give_up_at:
            found["while they are tried again"] = max(found["while they are tried again"], process.resident_mb)
            time.sleep(0.1)
    before = found[f"{first:,} held keys"]
    for name, memory in found.items():
        say(f"resident memory of a consumer, {name}: {memory:.0f} MB")
        beside = f"{memory / before:.2f} of that with {first:,} held keys"
        drains.table.row(f"consumer, resident memory, {name}", "MB", "flat").add(memory, beside)


def _written(shop: Shop, name: str) -> float:
    """Rows a second."""
    with shop.consuming(name) as process:
        shop.wait_for(process, lambda: bool(shop.moved(name)))
        time.sleep(SETTLE_S)
        begun, before = time.monotonic(), int(shop.database.one(_PAYMENTS))
        time.sleep(2 * shop.seconds)
        rate = (int(shop.database.one(_PAYMENTS)) - before) / (time.monotonic() - begun)
    say(f"{name}: {rate:,.0f} rows/s, {_held(shop)} held")
    return rate


def _held(shop: Shop) -> int:
    return int(shop.database.one("SELECT count(*) FROM outbox_held"))


def _slow(shop: Shop, values: Sequence[int]) -> None:
    """One process for each size of a batch. Its consumers sleep, so they share it."""
    for batch in values:
        names = {milliseconds: f"slow-{milliseconds}-{batch}" for milliseconds in values}
        rates = shop.rates(*names.values(), seconds=5.0)
        noted = shop.noted()
        for (milliseconds, name), rate in zip(names.items(), rates, strict=True):
            longest_s = max(float(seconds) for other, seconds in noted if other == name)
            row = shop.drains.table.row(f"function of {milliseconds} ms, batch of {batch}", "messages/s")
            row.add(rate.per_s, f"longest transaction {longest_s * 1000:,.0f} ms")


def _web(shop: Shop, seconds: float) -> None:
    """Small transactions on rows that the consumer changes too, in batches."""
    place = shop.database
    place.connection.execute(
        "INSERT INTO shop_account (id, total) SELECT n, 0 FROM generate_series(1, %s) n ON CONFLICT DO NOTHING",
        [ACCOUNTS],
    )
    alone = _web_times(place, seconds / 2)
    with shop.consuming("account") as process:
        shop.wait_for(process, lambda: bool(shop.moved("account")))
        before, begun = shop.moved("account"), time.monotonic()
        found = _web_times(place, seconds)
        rate = (shop.moved("account") - before) / (time.monotonic() - begun)
    row = shop.drains.table.row("web transaction on the rows of a consumer, p99", "ms", shape="{:.1f}".format)
    row.add(
        _percentile(found, 0.99),
        f"largest {found[-1]:.1f}; without the consumer {_percentile(alone, 0.99):.1f}; it handles {rate:,.0f}/s",
    )


def _web_times(place: Database, seconds: float) -> list[float]:
    """Sorted, in milliseconds."""
    found, until, number = [], time.monotonic() + seconds, 0
    with place.connect() as connection:
        while time.monotonic() < until:
            begun = time.monotonic()
            connection.execute(
                "UPDATE shop_account SET total = total + 1 WHERE id = %s", [1 + number * 7 % ACCOUNTS], prepare=True
            )
            found.append((time.monotonic() - begun) * 1000)
            number += 1
            time.sleep(WEB_PAUSE_S)
    return sorted(found)


def _percentile(sorted_values: Sequence[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))]


# ---- from one service to the other


def _chain(shop: Shop, seconds: float, partitions: Sequence[int], per_s: Sequence[int]) -> None:
    """From the return of COMMIT in the one service to the return of COMMIT in the other, through a harvester."""
    for count in partitions:
        for rate in per_s:
            found = _from_service_to_service(shop, [1 / rate] * int(rate * seconds), count)
            label = f"service to service at {rate:,} messages/s, partitions: {count}"
            table, shape = shop.drains.table, "{:.1f}".format
            table.row(f"{label}, median", "ms", "<= 15", shape).add(statistics.median(found))
            table.row(f"{label}, p99", "ms", "<= 60", shape).add(_percentile(found, 0.99), f"largest {found[-1]:.0f}")


def _from_service_to_service(shop: Shop, pauses_s: list[float], partitions: int) -> list[float]:
    """Sorted, in milliseconds."""
    drains = shop.drains
    topic = new_topic(drains.servers, partitions)
    drains.database.empty()
    receiver = Shop(drains, shop.database, shop.folder, topic, len(pauses_s), shop.seconds)
    with receiver.consuming("arrive") as process, harvesting(drains.database, topic, DELIVERY=EXACTLY) as harvest:
        harvest.said("lane_taken")
        placed = "SELECT count(*) FROM outbox_position"
        receiver.wait_for(process, lambda: receiver.database.one(placed) == partitions)
        written = write(drains, topic, pauses_s)
        receiver.wait_for(process, lambda: receiver.database.one(_PAYMENTS) >= len(written))
    arrived = {int(number): float(at) for number, at in receiver.noted()}
    assert arrived.keys() == written.keys(), f"{len(arrived)} of {len(written)} arrived"
    found = sorted((arrived[number] - at) * 1000 for number, at in written.items())
    say(f"{len(found)} messages, median {statistics.median(found):.1f} ms, largest {found[-1]:.0f} ms")
    return found
