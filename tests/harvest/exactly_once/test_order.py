"""Order per key where writers of one key wait for each other: id order alone is not read order. No sweep helps."""

import random
import threading
import uuid
from itertools import product

import psycopg
import pytest

from outbox.core.frontier import LOOK_BACK_IDS, Frontier
from outbox.harvest.exactly_once.rounds import read_connection
from outbox.messages.inserts import InsertStatements
from tests.harvest.exactly_once.bench import finish, wait_until
from tests.harvest.exactly_once.test_lanes import working_lanes

ROW_LOCKS, ADVISORY_LOCKS = "row locks", "advisory locks"
INSERT = "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, %s)"
NO_SWEEP = {"SWEEP_INTERVAL": 3600}


def insert(connection, locks, topic, key, value):
    """Whoever writes under the key waits until all that have written under it before have ended."""
    if locks == ROW_LOCKS:
        connection.execute("SELECT FROM serial WHERE key = %s FOR UPDATE", [key])
        connection.execute(INSERT, [topic, key, value])
    else:
        connection.execute(InsertStatements("outbox").insert_ordered, [topic, key, topic, key, value, None, "{}", "{}"])


def contend(bench, stop, number, keys, locks):
    """Transactions that write under two keys, and commit late at times, or very late, or not at all."""
    chance = random.Random(number)
    with psycopg.connect(bench.url) as connection:
        while not stop.is_set():
            written = []
            for name in sorted(chance.sample(keys, 2)):
                value = uuid.uuid4().hex
                insert(connection, locks, bench.topic, name, value)
                written.append((name, value))
                if chance.random() < 0.1:
                    stop.wait(chance.random() * 0.01)
            if chance.random() < 0.02:
                stop.wait(chance.uniform(0.1, 1.5))
            if chance.random() < 0.1:
                connection.rollback()
                continue
            with bench.stashed.mutex:  # keys are still locked: each is noted in the order of its commits
                connection.commit()
                for name, value in written:
                    bench.stashed.by_key[name].append(value)


def deliver_under_contention(bench, locks, seconds, enough=lambda: True, **settings):
    keys = [f"key-{n}" for n in range(12)]
    bench.db.execute("CREATE TABLE serial (key text PRIMARY KEY)")
    bench.db.execute("INSERT INTO serial SELECT unnest(%s::text[])", [keys])
    stop = threading.Event()
    threads = [threading.Thread(target=contend, args=(bench, stop, n, keys, locks), daemon=True) for n in range(6)]
    with bench.working(**NO_SWEEP, **settings) as host:
        for thread in threads:
            thread.start()
        stop.wait(seconds)
        wait_until(lambda: bench.stashed.count > 200 and enough())
        stop.set()
        for thread in threads:
            thread.join(10)
        bench.wait_empty()
        finish(host)


def look_back(monkeypatch, ids):
    """How far back the reader begins for the sake of open transactions; how often it had to begin anew all the same."""
    again = []

    class Watched(Frontier):
        def __init__(self):
            super().__init__(look_back_ids=ids)

        def missed_from(self, *given):
            found = super().missed_from(*given)
            if found is not None:
                again.append(found)
            return found

    monkeypatch.setattr(read_connection, "Frontier", Watched)
    return again


def keep_their_order(bench, monkeypatch, locks, ids, batch_max, seconds):
    again = look_back(monkeypatch, ids)
    # A reader that never looks back beforehand must do so afterwards, else this shows nothing of it.
    deliver_under_contention(bench, locks, seconds, lambda: ids or again, BATCH_MAX=batch_max)
    bench.check()
    print(f"{bench.stashed.count} records, {len(again)} reads begun anew")


@pytest.mark.parametrize(("ids", "batch_max"), [(0, 7), (LOOK_BACK_IDS, 200)])
def test_keys_serialised_by_row_locks_keep_their_order(bench, monkeypatch, ids, batch_max):
    keep_their_order(bench, monkeypatch, ROW_LOCKS, ids, batch_max, 2)


@pytest.mark.parametrize(("ids", "batch_max"), [(0, 200), (LOOK_BACK_IDS, 7)])
def test_keys_serialised_by_advisory_locks_keep_their_order(bench, monkeypatch, ids, batch_max):
    """As `stash(ordered=True)` does it."""
    keep_their_order(bench, monkeypatch, ADVISORY_LOCKS, ids, batch_max, 2)


@pytest.mark.torture
@pytest.mark.parametrize(
    ("locks", "ids", "batch_max"), [*product((ROW_LOCKS, ADVISORY_LOCKS), (0, LOOK_BACK_IDS), (7, 200))]
)
def test_serialised_keys_keep_their_order_for_long(bench, monkeypatch, locks, ids, batch_max):
    keep_their_order(bench, monkeypatch, locks, ids, batch_max, 30)


class Cursor(Frontier):
    """The naive reader: above the last id, with a sweep now and then."""

    reads = 0

    def start(self):
        self.reads += 1
        return 0 if self.reads % 50 == 0 else self._highest

    def missed_from(self, look, snapshot, sequence):
        return None


def is_reordered(bench):
    """As far as both sides are known."""
    found = bench.by_key()
    with bench.stashed.mutex:
        places = {value: place for values in bench.stashed.by_key.values() for place, value in enumerate(values)}
    for values in found.values():
        arrived = [places[value] for value in values if value in places]
        if arrived != sorted(arrived):
            return True
    return False


@pytest.mark.parametrize("locks", [ROW_LOCKS, ADVISORY_LOCKS])
def test_a_cursor_with_a_sweep_reorders_keys(bench, monkeypatch, locks):
    """The control: it loses nothing and doubles nothing, and the order of keys is gone."""
    monkeypatch.setattr(read_connection, "Frontier", Cursor)
    deliver_under_contention(bench, locks, 2, lambda: is_reordered(bench))
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


@pytest.mark.parametrize("lanes", [1, 3])
def test_ids_of_a_writer_near_the_lowest_number_are_delivered_by_any_number_of_lanes(bench, lanes):
    with working_lanes(bench, range(lanes), LANES=lanes, SWEEP_INTERVAL=0.2):
        bench.stash(["a", "b", "c"])
        bench.wait_empty()
        for id_ in (*range(-(1 << 63), -(1 << 63) + 6), *range(-6, 1)):
            bench.db.execute(
                "INSERT INTO outbox (id, kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, %s, %s)",
                [id_, bench.topic, "" if id_ % 2 else "a", str(id_)],
            )
            bench.stashed.by_key["" if id_ % 2 else "a"].append(str(id_))
        bench.stash(["a", "b", "c"])
        bench.wait_empty()
    assert sorted(record.value for record in bench.read()) == sorted(
        value.encode() for values in bench.stashed.by_key.values() for value in values
    )
