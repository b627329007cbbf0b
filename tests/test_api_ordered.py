"""ordered=True with connections that really interleave: the lock comes before the id and lasts until the commit."""

import random
import threading
import time
from contextlib import contextmanager

import pytest
from django.db import connection, transaction

import outbox
from outbox import Message
from outbox.messages.inserts import ORDER_LOCK, ORDER_SLOT, ORDER_SLOTS
from outbox.models import OutboxRecord

pytestmark = pytest.mark.django_db(transaction=True)

WAIT_MAX_S = 20.0


class Writer(threading.Thread):
    """Runs work in a thread, and so on a connection of its own; `result` re-raises what it raised."""

    def __init__(self, work, *args):
        super().__init__(daemon=True)
        self.work, self.args = work, args
        self.start()

    def run(self):
        self.returned = self.error = None
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '15s'")
            self.returned = self.work(*self.args)
        except BaseException as error:
            self.error = error
        finally:
            connection.close()

    def result(self):
        self.join(WAIT_MAX_S)
        assert not self.is_alive()
        if self.error:
            raise self.error
        return self.returned


def stash_ordered(key):
    with transaction.atomic():
        return outbox.stash("heroes", key=key, ordered=True)


def stash_many_ordered(*keys):
    with transaction.atomic():
        return outbox.stash_many([Message("heroes", key=key) for key in keys], ordered=True)


def copy_many_ordered(*keys):
    return stash_many_ordered(*keys * 1_001)


def raw_sql_ordered(key):
    """What the documentation gives to writers in other languages."""
    slot = ORDER_SLOT.format(topic="%s", key="%s")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SELECT pg_advisory_xact_lock({ORDER_LOCK}, {slot})", ["heroes", key])
        cursor.execute("INSERT INTO outbox (kafka_topic, kafka_key) VALUES (%s, %s) RETURNING id", ["heroes", key])
        return cursor.fetchone()[0]


MODES = [stash_ordered, stash_many_ordered, copy_many_ordered, raw_sql_ordered]


def slot_of(key):
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {ORDER_SLOT.format(topic='%s::text', key='%s::text')}", ["heroes", key])
        return cursor.fetchone()[0]


def wait_until_waiting(count):
    deadline = time.monotonic() + WAIT_MAX_S
    with connection.cursor() as cursor:
        while time.monotonic() < deadline:
            cursor.execute(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND NOT granted "
                "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
                [ORDER_LOCK],
            )
            if cursor.fetchone()[0] == count:
                return
            time.sleep(0.005)
    raise AssertionError(f"never saw {count} waiting")


@contextmanager
def transaction_with(key):
    with transaction.atomic():
        outbox.stash("heroes", key=key, ordered=True)
        yield


@pytest.mark.parametrize("way", MODES)
def test_the_lock_is_taken_before_the_id_is_drawn(way):
    with transaction_with("k"):
        waiting = Writer(way, "k")
        wait_until_waiting(1)
        drawn_meanwhile = outbox.stash("heroes", key="other")
        assert waiting.is_alive()
    ids = waiting.result()
    assert min(ids if isinstance(ids, list) else [ids]) > drawn_meanwhile


@pytest.mark.parametrize("way", MODES)
def test_other_keys_and_unordered_writers_are_not_blocked(way):
    slot = slot_of("k")
    other = next(f"other-{n}" for n in range(10) if slot_of(f"other-{n}") != slot)
    with transaction_with("k"):
        Writer(way, other).result()
        Writer(stash_unordered, "k").result()


def stash_unordered(key):
    with transaction.atomic():
        outbox.stash("heroes", key=key)
        return outbox.stash_many([Message("heroes", key=key)])


def test_keys_of_one_slot_wait_for_each_other():
    """So every writer agrees on the lock, and a transaction of many keys cannot overflow the lock table."""
    slot = slot_of("k")
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT 'n' || n FROM generate_series(1, 200000) n WHERE {ORDER_SLOT} = %s LIMIT 1".format(
                topic="%s::text", key="('n' || n)"
            ),
            ["heroes", slot],
        )
        neighbour = cursor.fetchone()[0]
    with transaction_with("k"):
        waiting = Writer(stash_ordered, neighbour)
        wait_until_waiting(1)
    waiting.result()


def test_the_lock_lasts_through_a_released_savepoint_and_ends_with_the_transaction():
    with transaction.atomic():
        with transaction.atomic():
            outbox.stash("heroes", key="k", ordered=True)
        waiting = Writer(stash_ordered, "k")
        wait_until_waiting(1)
    waiting.result()
    wait_until_waiting(0)


def test_more_keys_than_the_lock_table_has_room_for():
    with transaction.atomic():
        ids = outbox.stash_many((Message("heroes", key=str(n)) for n in range(30_000)), ordered=True)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'")
            assert 4_000 < cursor.fetchone()[0] <= ORDER_SLOTS
        transaction.set_rollback(True)
    assert len(ids) == 30_000


def test_two_calls_of_stash_many_do_not_deadlock():
    keys = [str(n) for n in range(200)]

    def work(seed):
        rng = random.Random(seed)
        for _ in range(25):
            stash_many_ordered(*rng.sample(keys, 50))

    for writer in [Writer(work, seed) for seed in range(4)]:
        writer.result()
    assert OutboxRecord.objects.count() == 4 * 25 * 50


def reorders(ordered):
    """How often a transaction found, just before its commit, that a higher id of its key had been committed."""
    found = []

    def work(seed):
        rng = random.Random(seed)
        for _ in range(40):
            key = rng.choice("ab")
            with transaction.atomic(), connection.cursor() as cursor:
                if ordered and rng.random() < 0.3:
                    [id] = outbox.stash_many([Message("heroes", key=key)], ordered=True)
                else:
                    id = outbox.stash("heroes", key=key, ordered=ordered)
                cursor.execute("SELECT pg_sleep(%s)", [rng.random() * 0.008])
                if OutboxRecord.objects.filter(kafka_key=key, id__gt=id).exists():
                    found.append(id)
                transaction.set_rollback(rng.random() < 0.1)

    for writer in [Writer(work, seed) for seed in range(5)]:
        writer.result()
    return len(found)


def test_ids_of_a_key_are_in_commit_order():
    assert reorders(ordered=True) == 0


def test_without_ordered_they_are_not():
    """The control: the check above sees a reorder where there is one."""
    assert reorders(ordered=False) > 0
