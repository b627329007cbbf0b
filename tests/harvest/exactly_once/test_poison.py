"""Poison records at random places, harvesters killed among them: nothing lost, nothing doubled, order exact."""

import random

import pytest

from tests.harvest.exactly_once.bench import wait_until
from tests.support.topics import create_topic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]  # as a file; its own waits come to more than the usual

RANDOM_VALUE = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 1500))"
MANY, MANY_POISON = 100_000, 100


def poisoned(bench, count, poison):
    """Some too large for the client, some for the broker; their former values by id."""
    chance = random.Random(count)
    bench.topic = create_topic(bench.servers, 3, **{"max.message.bytes": "20000"})
    ids = bench.stash([f"k{chance.randrange(60)}" for _ in range(count)])
    chosen = sorted(chance.sample(ids, poison))
    rows = bench.db.execute("SELECT id, kafka_key, kafka_value FROM outbox WHERE id = ANY(%s)", [chosen]).fetchall()
    bench.db.execute("UPDATE outbox SET kafka_value = repeat('x', 2000000) WHERE id = ANY(%s)", [chosen[::2]])
    bench.db.execute(f"UPDATE outbox SET kafka_value = {RANDOM_VALUE} WHERE id = ANY(%s)", [chosen[1::2]])
    return {id_: (key, value) for id_, key, value in rows}


def wait_while_it_lives(process, condition, timeout_s):
    """The harvester must not end by itself: nothing would follow."""
    wait_until(lambda: process.poll() is not None or condition(), timeout_s)
    assert process.poll() is None, f"it has ended: {process.returncode}"


def left(bench):
    return bench.db.execute("SELECT count(*) FROM outbox").fetchone()[0]


def held(bench):
    return bench.db.execute("SELECT count(*) FROM outbox_hold WHERE reason = 'rejected'").fetchone()[0]


def test_blocked_keys_go_on_in_order_when_they_are_released(bench):
    block(bench, 1_000, 6)


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_blocked_keys_among_many_records(bench):
    block(bench, MANY, MANY_POISON)


def block(bench, count, poison):
    wrong = poisoned(bench, count, poison)
    keys = {key for key, _ in wrong.values()}
    waiting = bench.db.execute(
        "SELECT count(*) FROM outbox AS o JOIN (SELECT kafka_key, min(id) AS first FROM outbox WHERE id = ANY(%s) "
        "GROUP BY kafka_key) AS p ON o.kafka_key = p.kafka_key AND o.id >= p.first",
        [list(wrong)],
    ).fetchone()[0]
    first = bench.spawn()
    wait_while_it_lives(first, lambda: held(bench) >= len(keys) // 2, 120)
    first.kill()
    first.wait()
    second = bench.spawn()
    wait_while_it_lives(second, lambda: (held(bench), left(bench)) == (len(keys), waiting), 60 + count // 100)
    for id_, (_, value) in wrong.items():
        bench.db.execute("UPDATE outbox SET kafka_value = %s WHERE id = %s", [value, id_])
    bench.db.execute("UPDATE outbox_hold SET wanted = 'retry'")
    wait_while_it_lives(second, lambda: left(bench) == 0, 120)
    wait_until(lambda: held(bench) == 0)
    bench.check()


def test_skipped_records_are_dead_or_delivered_and_never_both(bench):
    skip(bench, 1_000, 8)


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_skipped_among_many_records(bench):
    skip(bench, MANY, MANY_POISON)


def skip(bench, count, poison):
    wrong = poisoned(bench, count, poison)
    for key, value in wrong.values():
        bench.stashed.by_key[key].remove(value)
    dead = "SELECT record_id FROM outbox_dead ORDER BY record_id"
    for deaths in range(1, poison, max(1, poison // 4)):
        process = bench.spawn(REJECTION_POLICY="skip")
        wait_while_it_lives(process, lambda deaths=deaths: len(bench.db.execute(dead).fetchall()) >= deaths, 120)
        process.kill()
        process.wait()
    last = bench.spawn(REJECTION_POLICY="skip")
    wait_while_it_lives(last, lambda: left(bench) == 0, 600)
    wait_until(lambda: held(bench) == 0)
    assert [row[0] for row in bench.db.execute(dead)] == sorted(wrong)
    bench.check()
