"""Ids of messages on a real PostgreSQL: added once, with the transaction or not at all, and deleted when old."""

import threading
import uuid

import pytest
from django.db import connection, connections, transaction

from outbox.edges.postgres.consumers import seen
from outbox.edges.postgres.consumers.seen import SeenIds

SEEN = SeenIds("outbox", window_s=3600)


@pytest.fixture
def consumer(transactional_db):
    return f"shop.{uuid.uuid4().hex[:8]}"


def add(consumer, *ids, topic="orders"):
    with transaction.atomic():
        return sorted(SEEN.add(connection, consumer, topic, sorted(ids)))


def test_only_new_ids_are_returned(consumer):
    assert add(consumer, "a", "b") == ["a", "b"]
    assert add(consumer, "a", "b", "c") == ["c"]
    assert add(consumer, "a", topic="payments") == ["a"]
    assert add(f"{consumer}.other", "a") == ["a"]


def test_a_transaction_that_is_rolled_back_leaves_no_id(consumer):
    with transaction.atomic():
        SEEN.add(connection, consumer, "orders", ["a"])
        transaction.set_rollback(True)
    assert add(consumer, "a") == ["a"]


def test_what_a_transaction_did_not_come_to_is_new_again(consumer):
    with transaction.atomic():
        SEEN.add(connection, consumer, "orders", ["a", "b", "c"])
        SEEN.remove(connection, consumer, "orders", ["b", "c"])
    assert add(consumer, "a", "b", "c") == ["b", "c"]


@pytest.mark.parametrize("is_committed", [True, False])
def test_another_transaction_that_adds_the_same_is_waited_for(consumer, is_committed):
    found = []

    def work():
        try:
            found.extend(add(consumer, "a", "b"))
        finally:
            connections.close_all()

    with transaction.atomic():
        SEEN.add(connection, consumer, "orders", ["b"])
        other = threading.Thread(target=work, daemon=True)
        other.start()
        other.join(0.5)
        assert other.is_alive()
        transaction.set_rollback(not is_committed)
    other.join(20)
    assert found == (["a"] if is_committed else ["a", "b"])


def test_old_ids_are_deleted_in_slices(consumer, monkeypatch):
    monkeypatch.setattr(seen, "SLICE", 2)
    add(consumer, "a", "b", "c", "new")
    add(f"{consumer}.other", "a")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE outbox_seen SET at = now() - interval '2 hours' WHERE id <> 'new'")
    assert SEEN.tidy(connection, consumer)
    assert not SEEN.tidy(connection, consumer)
    assert add(consumer, "a", "b", "c", "new") == ["a", "b", "c"]
    assert add(f"{consumer}.other", "a") == []
