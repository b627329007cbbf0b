"""Positions of consumers on a real PostgreSQL: moved with what was handled, or not at all."""

import threading
import time
import uuid
from contextlib import contextmanager

import psycopg
import pytest
from django.db import Error, connection, connections
from psycopg import IsolationLevel

from outbox.core.consumers.values import Partition, Position
from outbox.edges.postgres.consumers.positions import Positions, application_name

ONE, TWO = Partition("orders", 0), Partition("orders", 1)


@pytest.fixture
def consumer(transactional_db):
    return f"shop.{uuid.uuid4().hex[:8]}"


@pytest.fixture
def positions():
    return Positions("outbox", session_timeout_s=1)


@contextmanager
def another(name=""):
    """A session beside Django's."""
    with psycopg.connect(**{**connection.get_connection_params(), "application_name": name}) as session:
        session.cursor_factory = psycopg.Cursor
        yield session


class Thread(threading.Thread):
    """Whose exception is kept, and whose connection is closed."""

    def __init__(self, work):
        super().__init__(daemon=True)
        self.work, self.error, self.result = work, None, None
        self.start()

    def run(self):
        try:
            self.result = self.work()
        except BaseException as error:
            self.error = error
        finally:
            connections.close_all()

    def end(self):
        self.join(20)
        assert not self.is_alive()
        return self


def begin():
    connection.set_autocommit(False)


def end(do="commit"):
    getattr(connection, do)()
    connection.set_autocommit(True)


def rows(consumer):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT topic, partition, next FROM outbox_position WHERE consumer = %s ORDER BY 1, 2, 3", [consumer]
        )
        return cursor.fetchall()


def test_a_position_is_made_once(consumer, positions):
    positions.create(connection, consumer, {ONE: Position(5, "id", 3), TWO: Position(0)})
    positions.create(connection, consumer, {ONE: Position(9), Partition("a", 7): Position(1)})
    found = positions.load(connection, consumer, [TWO, ONE, Partition("a", 7), Partition("none", 0)])
    assert found == {ONE: Position(5, "id", 3), TWO: Position(0, "", -1), Partition("a", 7): Position(1)}
    assert positions.load(connection, "another", [ONE]) == {}
    assert positions.load(connection, consumer, []) == {}


@pytest.mark.parametrize("level", [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ])
def test_two_owners_make_one_row_of_a_partition(consumer, positions, level):
    """Each would begin at another offset, as they were asked for at other times."""
    for round in range(10):
        partition = Partition("orders", round)
        barrier = threading.Barrier(4)

        def make(next, partition=partition, barrier=barrier):
            connection.ensure_connection()
            connection.connection.isolation_level = level
            barrier.wait(10)
            positions.create(connection, consumer, {partition: Position(next)})

        threads = [Thread(lambda next=next, make=make: make(next)) for next in range(4)]
        assert [thread.end().error for thread in threads] == [None] * 4
    assert [row[1] for row in rows(consumer)] == list(range(10))


def test_a_position_moves_within_the_transaction(consumer, positions):
    positions.create(connection, consumer, {ONE: Position(5), TWO: Position(7)})
    begin()
    found, transaction_id = positions.lock(connection, consumer, [TWO, ONE])
    assert found == {ONE: Position(5), TWO: Position(7)}
    moved = {ONE: (5, Position(8, "id", 2)), TWO: (7, Position(9, "id", 3))}
    assert positions.write(connection, consumer, moved) == (2, transaction_id)
    with another() as session:
        assert session.execute("SELECT count(*) FROM outbox_position WHERE next = 8").fetchone() == (0,)
    end("rollback")
    assert positions.load(connection, consumer, [ONE]) == {ONE: Position(5)}
    begin()
    _, transaction_id = positions.lock(connection, consumer, [ONE, TWO])
    assert positions.write(connection, consumer, moved) == (2, transaction_id)
    end()
    assert rows(consumer) == [("orders", 0, 8), ("orders", 1, 9)]
    assert positions.load(connection, consumer, [ONE]) == {ONE: Position(8, "id", 2)}


@pytest.mark.parametrize("before", [4, 6, 8])
def test_a_position_that_is_not_where_it_was_locked_stays(consumer, positions, before):
    positions.create(connection, consumer, {ONE: Position(5), TWO: Position(7)})
    begin()
    count, _ = positions.write(connection, consumer, {ONE: (before, Position(8)), TWO: (7, Position(9))})
    end()
    assert count == 1
    assert rows(consumer) == [("orders", 0, 5), ("orders", 1, 9)]


def test_without_a_row_nothing_is_locked(consumer, positions):
    begin()
    assert positions.lock(connection, consumer, [ONE]) == ({}, 0)
    assert positions.write(connection, consumer, {ONE: (0, Position(1))})[0] == 0
    end()
    assert rows(consumer) == []


def test_the_transaction_id_is_another_after_a_raw_commit(consumer, positions):
    positions.create(connection, consumer, {ONE: Position(5)})
    for statement in ("COMMIT", "ROLLBACK"):
        begin()
        _, locked = positions.lock(connection, consumer, [ONE])
        with connection.cursor() as cursor:
            cursor.execute(statement)
        count, written = positions.write(connection, consumer, {ONE: (5, Position(6))})
        assert count == 1
        assert written != locked
        end("rollback")
    begin()
    _, locked = positions.lock(connection, consumer, [ONE])
    with connection.cursor() as cursor:
        cursor.execute("SAVEPOINT left_open")
    assert positions.write(connection, consumer, {ONE: (5, Position(6))}) == (1, locked), "a savepoint is no new one"
    end("rollback")


def test_a_second_owner_waits_and_finds_the_row_gone(consumer, positions):
    positions.create(connection, consumer, {ONE: Position(5), TWO: Position(7)})
    begin()
    positions.lock(connection, consumer, [ONE])

    def second():
        begin()
        return positions.lock(connection, consumer, [TWO, ONE])[0]

    thread = Thread(second)
    time.sleep(0.3)
    assert thread.is_alive(), "it waits"
    positions.write(connection, consumer, {ONE: (5, Position(6))})
    end()
    assert (thread.end().error, thread.result) == (None, {TWO: Position(7)})


def test_rows_are_locked_in_one_order(consumer, positions):
    """Two owners who take them in other orders would each wait for the other."""
    partitions = [Partition("orders", number) for number in range(40)]
    positions.create(connection, consumer, {partition: Position(0) for partition in reversed(partitions)})
    deadlocks = []

    def lock(order):
        for _ in range(15):
            begin()
            try:
                positions.lock(connection, consumer, order)
            except Error as error:
                deadlocks.append(error)
            end("rollback")

    threads = [Thread(lambda order=order: lock(order)) for order in (partitions, partitions[::-1], partitions[20:])]
    assert [thread.end().error for thread in threads] == [None] * 3
    assert deadlocks == []


def test_a_doubtful_commit_is_waited_for(consumer, positions):
    """The first question with a lock sees neither row: only the second answer counts."""
    positions.create(connection, consumer, {ONE: Position(5)})
    writers = []
    for outcome, expected in (("commit", 6), ("rollback", 6)):
        before = positions.load(connection, consumer, [ONE])[ONE].next
        begin()
        writers.append(positions.lock(connection, consumer, [ONE])[1] & 0xFFFFFFFF)
        positions.write(connection, consumer, {ONE: (before, Position(before + 1))})
        thread = Thread(lambda: positions.settle(connection, consumer, [ONE]))
        time.sleep(0.3)
        assert thread.is_alive()
        end(outcome)
        assert (thread.end().error, thread.result) == (None, {ONE: (Position(expected), writers[0])})


def test_a_plain_read_of_a_doubtful_commit_would_be_wrong(consumer, positions):
    positions.create(connection, consumer, {ONE: Position(5)})
    begin()
    positions.lock(connection, consumer, [ONE])
    positions.write(connection, consumer, {ONE: (5, Position(6))})
    thread = Thread(lambda: positions.load(connection, consumer, [ONE]))
    assert thread.end().result == {ONE: Position(5)}
    end()


def test_a_question_about_a_doubtful_commit_ends(consumer, positions):
    positions.create(connection, consumer, {ONE: Position(5)})
    begin()
    positions.lock(connection, consumer, [ONE])
    thread = Thread(lambda: positions.settle(connection, consumer, [ONE]))
    assert thread.end().error.__cause__.sqlstate == "55P03"
    end()


def test_a_session_of_the_consumer_that_holds_the_rows_is_ended(consumer, positions):
    positions.create(connection, consumer, {ONE: Position(5), TWO: Position(7)})
    with another(application_name(consumer)) as holder, another(application_name(consumer)) as bystander:
        holder.execute("SELECT FROM outbox_position WHERE consumer = %s AND partition = 0 FOR UPDATE", [consumer])
        bystander.execute("SELECT FROM outbox_position WHERE consumer = %s AND partition = 1 FOR UPDATE", [consumer])
        assert positions.unblock(connection, consumer, [ONE]) == 1
        assert positions.settle(connection, consumer, [ONE])[ONE][0] == Position(5)
        assert bystander.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError):
            holder.execute("SELECT 1")


def test_a_session_of_somebody_else_is_left_alone(consumer, positions):
    positions.create(connection, consumer, {ONE: Position(5)})
    for name in ("psql", application_name("another"), ""):
        with another(name) as holder:
            holder.execute("SELECT FROM outbox_position WHERE consumer = %s FOR UPDATE", [consumer])
            assert positions.unblock(connection, consumer, [ONE]) == 0
            assert holder.execute("SELECT 1").fetchone() == (1,)
            holder.rollback()
    assert positions.unblock(connection, consumer, [ONE]) == 0, "nobody holds it any more"


def test_the_name_of_a_session_is_what_postgresql_keeps_of_it(consumer):
    for name in (f"grün.{'x' * 100}", "shop.record"):
        with another(application_name(name)) as session:
            (kept,) = session.execute(
                "SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()"
            ).fetchone()
        assert kept == application_name(name)


MOVES = """
DO $$ BEGIN
  FOR n IN 300..20299 LOOP
    INSERT INTO outbox_position (consumer, topic, partition, next) VALUES ('{0}', 'orders', 0, n + 1);
    DELETE FROM outbox_position WHERE consumer = '{0}' AND topic = 'orders' AND partition = 0 AND next = n;
  END LOOP;
END $$
"""


def test_a_pinned_horizon_does_not_make_it_slow(consumer, positions, capsys):
    """PostgreSQL keeps every dead row while an old transaction elsewhere might see it."""
    positions.create(connection, consumer, {ONE: Position(0)})

    def move(begin_at):
        began = time.perf_counter()
        for next in range(begin_at, begin_at + 300):
            begin()
            positions.lock(connection, consumer, [ONE])
            positions.write(connection, consumer, {ONE: (next, Position(next + 1))})
            end()
        return (time.perf_counter() - began) / 300 * 1000

    free = move(0)
    with another() as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT txid_current()")
        with connection.cursor() as cursor:
            cursor.execute(MOVES.format(consumer))
        pinned = move(20300)
    with capsys.disabled():
        print(f"\na moved position: {free:.2f} ms; behind 20,000 dead rows that must stay: {pinned:.2f} ms")
    assert pinned < 5 * free


def test_those_of_a_replay_belong_to_no_consumer(consumer, positions):
    positions.create(connection, consumer, {ONE: Position(5)})
    positions.create(connection, f"{consumer}#7", {ONE: Position(2)})
    names = {name for name in positions.topics(connection) if name.startswith(consumer)}
    assert names == {consumer}
