"""`ordered=True` to the end: Kafka has the records of a key in the order in which their transactions committed."""

import random
import threading
import time

import psycopg
import pytest

from outbox.messages.inserts import InsertStatements

WRITERS, TURNS, KEY = 16, 6, "contended"


def write(bench, statement, before, number, committed):
    """Every transaction notes itself while it holds what keeps others of its key from committing, if anything does."""
    chance = random.Random(number)
    with psycopg.connect(bench.url) as connection:
        for turn in range(TURNS):
            value = f"{number}-{turn}"
            connection.execute(statement, (*before, bench.topic, KEY, value, None, "{}", "{}"))
            time.sleep(chance.uniform(0, 0.01))
            if chance.random() < 0.1:
                connection.rollback()
                continue
            committed.append(value)
            connection.commit()


def stash_from_all_sides(bench, statement, before=()):
    committed = []
    threads = [
        threading.Thread(target=write, args=(bench, statement, before, number, committed), daemon=True)
        for number in range(WRITERS)
    ]
    with bench.working(BATCH_MAX=7):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        bench.wait_empty()
    return committed, bench.by_key()[KEY]


def test_ordered_records_arrive_in_the_order_of_their_commits(bench):
    statement = InsertStatements("outbox").insert_ordered
    committed, arrived = stash_from_all_sides(bench, statement, (bench.topic, KEY))
    assert len(committed) > WRITERS
    assert arrived == committed


def test_records_that_are_not_ordered_need_not(bench):
    committed, arrived = stash_from_all_sides(bench, InsertStatements("outbox").insert)
    assert sorted(arrived) == sorted(committed)
    if arrived == committed:
        pytest.fail("the negative control: with random delays before the commits some record was to be overtaken")
