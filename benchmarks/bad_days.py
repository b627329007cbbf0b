"""Rows about bad days: a record that Kafka rejects, Kafka unavailable with a million records behind, and the cost of
monitoring.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.command import DRAIN_TIMEOUT_S, Harvest, harvesting
from benchmarks.drains import EXACTLY, RECORDS, Drains
from benchmarks.report import ratio, say
from benchmarks.servers import PARTITIONS, Costs, Fill, new_topic

_HEX = "(SELECT string_agg(md5(random()::text || m || n), '') FROM generate_series(1, {}) m)"
_LOOKS = 20
_SCRAPE_S = 5.0
_AWAY_S = 10.0
TOO_LARGE = {
    # The client takes neither. If the value compressed well, it would pass the broker's limit.
    "for the client": "repeat('x', 2000000)",
    "for the broker": "(SELECT string_agg(md5(random()::text || n), '') FROM generate_series(1, 20000) n)",
}


def poison(drains: Drains, records: int = 2 * RECORDS, names: Sequence[str] = tuple(TOO_LARGE)) -> None:
    """Kafka rejects one record among 1,000 keys, and its key waits. How fast are all other keys? The shorter the drain,
    the larger the share of the search for the record."""
    fill = Fill(records)
    base = drains.drain(fill)
    label = f"{records:,} beside a poison record"
    row = drains.table.row(f"drain of {label}", "records/s")
    for name in names:
        seconds, held = _poisoned(drains, fill, TOO_LARGE[name])
        rate = (fill.records - held) / seconds
        row.add(rate, f"too large {name}: {held} records of its key wait")
        drains.table.row(f"  of the drain of {label} too large {name}", "", ">= 0.90", ratio).add(rate / base.rate)
        cost_s = seconds - (fill.records - held) / base.rate
        drains.table.row(f"  seconds that it costs, {label} too large {name}", "s", shape="{:.2f}".format).add(cost_s)


def _poisoned(drains: Drains, fill: Fill, value: str) -> tuple[float, int]:
    """The seconds until only the key of the poison record is left, and the number of its records."""
    database, topic = drains.database, new_topic(drains.servers, PARTITIONS, **{"max.message.bytes": "500000"})
    database.fill(topic, fill)
    first, last = database.one("SELECT min(id) FROM outbox"), database.one("SELECT max(id) FROM outbox")
    id_ = first + fill.records // 4
    database.connection.execute(f"UPDATE outbox SET kafka_value = {value} WHERE id = {id_}".encode())
    key = database.one("SELECT kafka_key FROM outbox WHERE id = %s", id_)
    others = "SELECT EXISTS (SELECT FROM outbox WHERE id > %s AND kafka_key <> %s)"
    try:
        with harvesting(database, topic, LANES=1, DELIVERY=EXACTLY) as harvest:
            since = harvest.said("lane_taken")
            _wait(harvest, lambda: not database.one(others, last - 1_000, key))
            seconds = time.monotonic() - since  # a query of the whole table would walk the deleted rows
            _wait(harvest, lambda: not database.one(others, 0, key))
        held = database.one("SELECT count(*) FROM outbox")
    finally:
        database.connection.execute("TRUNCATE outbox_hold, outbox_watch")
    told = " ".join(f"{name}={spent:.2f}" for name, spent in harvest.stages.items())
    say(f"poison: {seconds:.2f} s, {held} held; {told}; {_ends(harvest)}")
    return seconds, held


def behind(drains: Drains, records: int = 2 * RECORDS, refused: int = 10_000, brief: bool = False) -> None:
    """Kafka rejects records at the head of the table, each with a key of its own. How fast are all others?"""
    fill = Fill(records)
    for delivery in (EXACTLY,) if brief else (EXACTLY, "at-least-once"):
        base = drains.drain(fill, DELIVERY=delivery)
        for name, count, value in (
            # Records for the client have more than 1 MB, and the harvester reads all of it: fewer of them show as much.
            ("for the client", refused // 10, "repeat('x', 1100000)"),
            ("for the broker", refused, _HEX.format(150)),
        ):
            begins_s, rate, told = _behind(drains, fill, count, value, delivery)
            label = f"behind {count:,} too large {name}, {delivery}"
            drains.table.row(f"seconds until others leave the table {label}", "s", shape="{:.1f}".format).add(begins_s)
            drains.table.row(f"  then the rate of {records:,} others", "records/s").add(rate, told)
            drains.table.row(f"  of the drain without them, {label}", "", ">= 0.90", ratio).add(rate / base.rate)


def _behind(drains: Drains, fill: Fill, count: int, value: str, delivery: str) -> tuple[float, float, str]:
    """The seconds until the first of the others are gone, their rate from then on, and the lane's log."""
    database, topic = drains.database, new_topic(drains.servers, PARTITIONS, **{"max.message.bytes": "2000"})
    database.empty()
    database.connection.execute(
        f"INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) SELECT %s, 'bad-' || n, {value} "
        "FROM generate_series(1, %s) n".encode(),
        [topic, count],
    )
    head = database.one("SELECT max(id) FROM outbox")
    database.insert(new_topic(drains.servers), fill)
    database.connection.execute("VACUUM ANALYZE outbox")
    last = database.one("SELECT max(id) FROM outbox")
    others = "SELECT EXISTS (SELECT FROM outbox WHERE id > %s)"
    try:
        with harvesting(database, topic, LANES=1, DELIVERY=delivery) as harvest:
            since = harvest.said("lane_taken" if delivery == EXACTLY else "leader_acquired")
            first = "SELECT EXISTS (SELECT FROM outbox WHERE id = %s)"
            _wait(harvest, lambda: not database.one(first, head + 1))
            begun = time.monotonic()
            for above in (last - 1_000, head):
                _wait(harvest, lambda above=above: not database.one(others, above))
            seconds = time.monotonic() - begun
        told = " ".join(f"{name}={spent:.2f}" for name, spent in harvest.stages.items())
        say(f"behind {count} refused, {delivery}: {begun - since:.2f} + {seconds:.2f} s; {told}; {_ends(harvest)}")
    finally:
        database.connection.execute("TRUNCATE outbox_hold, outbox_watch")
    found = re.search(r"takeovers=(\d+)", _ends(harvest))
    return begun - since, fill.records / seconds, f"{found[1]} takeovers" if found else ""


def _ends(harvest: Harvest) -> str:
    return "; ".join(re.findall(r"lane_ended.*?renewals=\d+", harvest.log))


def _wait(harvest: Harvest, condition: Any) -> None:
    give_up_at = time.monotonic() + DRAIN_TIMEOUT_S
    while not condition():
        harvest.check(give_up_at)
        time.sleep(0.005)


def outage(drains: Drains, records: int, away_s: float = _AWAY_S) -> None:
    """Kafka is unavailable while a million records are stashed: memory before, during and after; then the rate."""
    from outbox.devstack import Kafka

    database, fill = drains.database, Fill(records)
    with Kafka() as kafka, _using(database, kafka.bootstrap_servers):
        topic = new_topic(kafka.bootstrap_servers)
        database.empty()
        with harvesting(database, topic, LANES=1, DELIVERY=EXACTLY) as harvest:
            harvest.said("lane_taken")
            database.insert(topic, Fill(RECORDS // 4))
            _wait(harvest, lambda: not database.one("SELECT EXISTS (SELECT FROM outbox)"))
            found = {"before": harvest.resident_mb}
            kafka.stop()
            database.insert(topic, fill)
            found["away"] = _largest_mb(harvest, away_s)
            kafka.start()
            since, seconds = _drained_after(drains, harvest, records)
            found["after"] = harvest.resident_mb
    for name, memory in found.items():
        drains.table.row(f"Kafka unavailable, {records:,} records behind: resident memory {name}", "MB", "flat").add(
            memory
        )
    rate = records / seconds
    drains.table.row("  rate when it is back", "records/s").add(rate, f"the first left the table after {since:.1f} s")
    if drains.last_rate == drains.last_rate:
        drains.table.row("  of the drain, when it is back", "", ">= 0.90", ratio).add(rate / drains.last_rate)


def _drained_after(drains: Drains, harvest: Harvest, records: int) -> tuple[float, float]:
    """Seconds until the first of the backlog was deleted, and from then until the last one was."""
    begun, database = time.monotonic(), drains.database
    first = database.one("SELECT min(id) FROM outbox")
    _wait(harvest, lambda: not database.one("SELECT EXISTS (SELECT FROM outbox WHERE id = %s)", first))
    since = time.monotonic()
    for above in (first + records - 1_000, 0):
        _wait(harvest, lambda above=above: not database.one("SELECT EXISTS (SELECT FROM outbox WHERE id > %s)", above))
    return since - begun, time.monotonic() - since


@contextlib.contextmanager
def _using(database: Any, servers: str) -> Any:
    """Points harvesters to other brokers."""
    name = "OUTBOX_BOOTSTRAP_SERVERS"
    before, database.environment[name] = database.environment[name], servers
    try:
        yield
    finally:
        database.environment[name] = before
        database.empty()


def _largest_mb(harvest: Harvest, seconds: float) -> float:
    give_up_at, largest = time.monotonic() + seconds, 0.0
    while time.monotonic() < give_up_at:
        largest = max(largest, harvest.resident_mb)
        time.sleep(0.2)
    return largest


def sampling(drains: Drains, records: int = RECORDS) -> None:
    """The cost of `--metrics-port` and the admin's samples, as a share of one core. A comparison of drains with and
    without them would show the noise of the machine."""
    from django.db import connection

    from benchmarks.stash import setup_django

    setup_django()
    drains.database.fill(new_topic(drains.servers), Fill(records))
    origin = connection.settings_dict["NAME"]
    connection.settings_dict["NAME"] = drains.database.name
    try:
        _sampling(drains)
    finally:
        connection.settings_dict["NAME"] = origin


def _sampling(drains: Drains) -> None:
    share = 0.0
    for name, (look, every_s) in _looks(drains).items():
        wall_s, cpu_s = _cost(drains, look)
        share += cpu_s / every_s
        text = f"{wall_s * 1000:.1f} ms of wall clock, every {every_s:.0f} s"
        drains.table.row(f"sampling: {name}", "CPU ms", shape="{:.1f}".format).add(cpu_s * 1000, text)
    drains.table.row("sampling, of one core", "%", "< 1", "{:.2f}".format).add(100 * share)


def _looks(drains: Drains) -> dict[str, tuple[Any, float]]:
    """Each kind of query, and its interval."""
    import psycopg

    from outbox import conf
    from outbox.contrib.exposition import exposition
    from outbox.contrib.prometheus import SAMPLE_INTERVAL_S, registry_of, take_sample
    from outbox.edges.postgres.counts import samples
    from outbox.harvest.harvester import Harvester
    from outbox.harvest.samples import EVERY_S

    given = conf.parse({"NAME": "sampled", "BOOTSTRAP_SERVERS": drains.servers})
    sample = take_sample(given)
    registry = registry_of(Harvester(given), type("Sampled", (), {"sample": sample})())

    def minute() -> None:
        with psycopg.connect(drains.database.url, autocommit=True) as connection:
            samples.take(connection, "outbox", 0)

    return {
        "backlog, dead letters and lag for metrics": (lambda: take_sample(given), SAMPLE_INTERVAL_S),
        "/metrics": (lambda: exposition(registry), _SCRAPE_S),
        "a sample for the admin": (minute, EVERY_S),
    }


def _cost(drains: Drains, look: Any) -> tuple[float, float]:
    """Seconds of wall clock, and of CPU of this process and both servers."""
    look()
    costs, used_s, begun = Costs(drains.database, drains.server, drains.servers), time.process_time(), time.monotonic()
    for _ in range(_LOOKS):
        look()
    wall_s, own_s = time.monotonic() - begun, time.process_time() - used_s
    postgres_s, kafka_s, _ = costs.taken()
    return wall_s / _LOOKS, (own_s + postgres_s + kafka_s) / _LOOKS
