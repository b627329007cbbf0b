"""Order per key where writers of one key wait for each other's row lock: id order alone is not read order."""

import threading
import time
import uuid

import psycopg
import pytest

from outbox.core.frontier import Frontier
from outbox.harvest.exactly_once_rounds import Rounds
from tests.harvest.exactly_once.bench import finish, wait_until


def contend(bench, stop, number, keys):
    """Transactions that lock two keys' rows in random order of time, write under both, and commit late at times."""
    import random

    chance = random.Random(number)
    with psycopg.connect(bench.url) as connection:
        while not stop.is_set():
            names = sorted(chance.sample(keys, 2))
            written = []
            for name in names:
                connection.execute("SELECT FROM serial WHERE key = %s FOR UPDATE", [name])
                value = uuid.uuid4().hex
                connection.execute(
                    "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, %s)",
                    [bench.topic, name, value],
                )
                written.append((name, value))
                if chance.random() < 0.1:
                    time.sleep(chance.random() * 0.01)
            if chance.random() < 0.1:
                connection.rollback()
                continue
            with bench.stashed.mutex:  # the order in which their rows were locked is the order of commits
                connection.commit()
                for name, value in written:
                    bench.stashed.by_key[name].append(value)


def deliver_under_contention(bench, seconds, **settings):
    keys = [f"key-{n}" for n in range(12)]
    bench.db.execute("CREATE TABLE serial (key text PRIMARY KEY)")
    bench.db.execute("INSERT INTO serial SELECT unnest(%s::text[])", [keys])
    stop = threading.Event()
    threads = [threading.Thread(target=contend, args=(bench, stop, n, keys), daemon=True) for n in range(6)]
    with bench.working(**settings) as host:
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        stop.set()
        for thread in threads:
            thread.join(10)
        bench.wait_empty()
        finish(host)
    assert bench.stashed.count > 200


@pytest.mark.parametrize("batch_max", [7, 200])
def test_keys_serialised_by_row_locks_keep_their_order(bench, batch_max):
    deliver_under_contention(bench, 5, BATCH_MAX=batch_max, SWEEP_INTERVAL=3600)
    bench.check()


class Cursor(Frontier):
    """The naive reader: above the last id, with a sweep now and then."""

    reads = 0

    def start(self):
        self.reads += 1
        return 0 if self.reads % 50 == 0 else self._highest

    def missed_from(self, look, snapshot, sequence):
        return None


def test_a_cursor_with_a_sweep_reorders_keys(bench, monkeypatch):
    """The control: it loses nothing and doubles nothing, and the order of keys is gone."""
    monkeypatch.setattr(Rounds.__init__.__globals__["Frontier"], "start", Cursor.start)
    monkeypatch.setattr(Frontier, "missed_from", Cursor.missed_from)
    monkeypatch.setattr(Frontier, "reads", 0, raising=False)
    deliver_under_contention(bench, 8, SWEEP_INTERVAL=3600)
    found = bench.by_key()
    assert {key: sorted(values) for key, values in found.items()} == {
        key: sorted(values) for key, values in bench.stashed.by_key.items()
    }
    assert found != dict(bench.stashed.by_key)


def test_the_sweep_finds_what_breaks_the_rules(bench):
    """An id set by hand, far below what was read already, in a transaction that took no id from the sequence."""
    bench.db.execute("SELECT setval('outbox_id_seq', 1000)")
    with bench.working(SWEEP_INTERVAL=0.5):
        bench.stash(["a"] * 5)
        bench.wait_empty()
        bench.db.execute(
            "INSERT INTO outbox (id, kafka_topic, kafka_key, kafka_value) VALUES (7, %s, 'low', 'x')", [bench.topic]
        )
        bench.wait_empty()
    assert wait_until(lambda: bench.by_key())["low"] == ["x"]
