"""Owners of partitions on a real PostgreSQL: who has them, who left cleanly, and who lives."""

import uuid
from contextlib import closing

import psycopg
import pytest
from django.db import OperationalError, connection, transaction

from outbox.core.consumers.crashes import PartitionOwner, Suspicion
from outbox.core.consumers.values import Partition
from outbox.edges.postgres.consumers.owners import SHOW_LIFE, Owners

ONE, TWO = Partition("orders", 0), Partition("orders", 1)
CALM = Suspicion()


@pytest.fixture
def consumer(transactional_db):
    return f"shop.{uuid.uuid4().hex[:8]}"


@pytest.fixture
def me():
    return Owners("outbox", owner=f"me-{uuid.uuid4().hex}", session_timeout_s=1)


@pytest.fixture
def other():
    return Owners("outbox", owner=f"other-{uuid.uuid4().hex}", session_timeout_s=1)


def load(consumer, *partitions):
    return Owners("outbox", owner="", session_timeout_s=1).load(connection, consumer, partitions or [ONE, TWO])


def test_an_owner_counts_as_gone_uncleanly_until_it_leaves(consumer, me):
    assert load(consumer) == {}
    me.own(connection, consumer, {ONE: (10, CALM), TWO: (20, Suspicion(True, 7, 1))})
    assert load(consumer) == {
        ONE: PartitionOwner(me.owner, is_clean=False, next=10),
        TWO: PartitionOwner(me.owner, is_clean=False, next=20, suspect=7, deaths=1),
    }
    me.leave(connection, consumer, [ONE])
    assert {partition: one.is_clean for partition, one in load(consumer).items()} == {ONE: True, TWO: False}


def test_a_successor_takes_over_and_the_one_before_writes_nothing_more(consumer, me, other):
    other.own(connection, consumer, {ONE: (10, CALM)})
    other.begin(connection, consumer, ONE, 10)
    assert load(consumer)[ONE].begun == 10
    me.own(connection, consumer, {ONE: (11, CALM)})
    assert load(consumer)[ONE] == PartitionOwner(me.owner, is_clean=False, next=11)
    other.begin(connection, consumer, ONE, 11)
    other.leave(connection, consumer, [ONE])
    assert load(consumer)[ONE] == PartitionOwner(me.owner, is_clean=False, next=11)


def test_a_message_that_has_passed_is_no_longer_begun_and_the_last_one_clears_the_suspicion(consumer, me):
    me.own(connection, consumer, {ONE: (10, Suspicion(True, 10, 1))})
    for is_last, expected in ((False, (None, 10, 1)), (True, (None, None, 0))):
        me.begin(connection, consumer, ONE, 10)
        with transaction.atomic():
            me.passed(connection, consumer, ONE, is_last=is_last)
        found = load(consumer)[ONE]
        assert (found.begun, found.suspect, found.deaths) == expected


def test_a_row_that_an_owner_keeps_locked_is_not_waited_for_without_end(consumer, me, other):
    other.own(connection, consumer, {ONE: (10, CALM)})
    with closing(psycopg.connect(**connection.get_connection_params())) as session:
        session.execute("UPDATE outbox_owner SET begun = NULL WHERE consumer = %s", [consumer])
        with pytest.raises(OperationalError, match="lock timeout"):
            me.own(connection, consumer, {ONE: (10, CALM), TWO: (0, CALM)})
        session.rollback()
    me.own(connection, consumer, {ONE: (10, CALM), TWO: (0, CALM)})
    assert {partition: one.owner for partition, one in load(consumer).items()} == {ONE: me.owner, TWO: me.owner}


def test_a_mark_outlives_the_transaction_that_fails(consumer, me):
    me.own(connection, consumer, {ONE: (10, CALM)})
    me.begin(connection, consumer, ONE, 10)
    with transaction.atomic():
        me.passed(connection, consumer, ONE, is_last=True)
        transaction.set_rollback(True)
    assert load(consumer)[ONE].begun == 10


def test_an_owner_lives_as_long_as_its_session(consumer, me):
    me.own(connection, consumer, {ONE: (10, CALM)})
    given = {**connection.get_connection_params(), "cursor_factory": psycopg.Cursor}
    with closing(psycopg.connect(**given, autocommit=True)) as session:
        session.execute(SHOW_LIFE, [me.owner])
        assert load(consumer)[ONE].is_alive
    for _ in range(100):
        if not load(consumer)[ONE].is_alive:
            break
    assert not load(consumer)[ONE].is_alive


def test_a_message_that_is_given_up_is_not_suspected(consumer, me, other):
    me.own(connection, consumer, {ONE: (10, Suspicion(True, 7, 1))})
    me.begin(connection, consumer, ONE, 11)
    other.given_up(connection, consumer, ONE)
    assert load(consumer)[ONE].begun == 11
    me.given_up(connection, consumer, ONE)
    assert (load(consumer)[ONE].begun, load(consumer)[ONE].suspect) == (None, 7)
