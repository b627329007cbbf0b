"""What processes show of their partitions, written to a real PostgreSQL."""

import os
import signal
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from django.db import connection
from django.utils import timezone

from outbox.core.consumers.shown import MessageCounts, ShownPartition
from outbox.core.consumers.values import Partition
from outbox.devstack.folders import dispose, new_folder
from outbox.edges.postgres.common.session import StatementOverdue
from outbox.edges.postgres.consumers import shown
from outbox.edges.postgres.consumers.shown import PartitionRows
from outbox.models import ConsumerHold, ConsumerPartition
from tests.support import pgbouncer
from tests.support.pgbouncer import PgBouncer

ONE, TWO = Partition("orders", 0), Partition("orders", 1)
ROW = ShownPartition(ONE, "reading", "", 25, 15, 9.5, 7, 0.5)
STOPPED = ShownPartition(TWO, "stopped", "a\0reason", None, None, None, 0, None)


@pytest.fixture
def consumer(transactional_db):
    return f"shop.{uuid.uuid4().hex[:8]}"


@pytest.fixture
def writer():
    made = []

    def writer(owner="host_1"):
        made.append(PartitionRows("default", "outbox", owner=owner, life=owner))
        return made[-1]

    yield writer
    for one in made:
        one.close()


def rows(consumer):
    columns = ("partition", "owner", "state", "reason", "stable_offset", "lag", "oldest_age_s", "handled", "rate")
    return list(ConsumerPartition.objects.filter(consumer=consumer).order_by("partition").values_list(*columns))


def sessions():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pid, wait_event_type FROM pg_stat_activity WHERE application_name = %s", [shown.NAME])
        return dict(cursor.fetchall())


def test_held_messages_and_dead_letters_of_a_consumer_are_counted(consumer, writer):
    place = {"consumer": consumer, "topic": "orders", "partition": 0}
    for offset, columns in enumerate(
        (
            {"reason": "failed"},
            {"reason": "failed", "next_try": timezone.now()},
            {"reason": "waiting"},
            {"reason": "failed", "wanted": "skip"},
            {"reason": "poison", "died_at": timezone.now()},
        )
    ):
        ConsumerHold.objects.create(**place, offset=offset, **columns)
    one = writer()
    one.write(consumer, [ROW])
    assert one.counts(consumer) == MessageCounts(held=4, undecided=1, dead=1)
    assert one.counts("shop.none") == MessageCounts(0, 0, 0)
    assert len(sessions()) == 1
    ConsumerHold.objects.filter(consumer=consumer).delete()


def test_each_partition_has_one_row_which_the_next_owner_writes_over(consumer, writer):
    first, second = writer(), writer("host_2")
    first.write(consumer, [STOPPED, ROW])
    of_two = (1, "host_1", "stopped", "areason", None, None, None, 0, None)
    assert rows(consumer) == [(0, "host_1", "reading", "", 25, 15, 9.5, 7, 0.5), of_two]
    before = ConsumerPartition.objects.get(consumer=consumer, partition=0)
    second.write(consumer, [ShownPartition(ONE, "stopped", "why", 26, 0, 0.0, 1, None)])
    assert rows(consumer) == [(0, "host_2", "stopped", "why", 26, 0, 0.0, 1, None), of_two]
    after = ConsumerPartition.objects.get(consumer=consumer, partition=0)
    assert (after.id, after.seen_at > before.seen_at) == (before.id, True)
    second.write("another", [ROW])
    second.write(consumer, [])
    assert len(rows(consumer)) == 2


def test_one_connection_is_kept_and_a_lost_one_replaced(consumer, writer):
    one = writer()
    for _ in range(3):
        one.write(consumer, [ROW])
    (pid,) = sessions()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    with pytest.raises(psycopg.OperationalError):
        one.write(consumer, [ROW])
    one.write(consumer, [ROW])
    assert len(sessions()) == 1
    one.close()


def test_a_server_that_stands_still_is_given_up(consumer, writer):
    one = writer()
    one.write(consumer, [ROW])
    (pid,) = sessions()
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(StatementOverdue):
            one.write(consumer, [ROW])
        assert time.monotonic() - began < 3 * shown.TIMEOUT_S
    finally:
        os.kill(pid, signal.SIGCONT)
    one.write(consumer, [ROW])


def test_a_statement_that_waits_for_a_lock_is_ended_on_the_server_too(consumer, writer):
    """Else each attempt would leave a session there."""
    one = writer()
    with psycopg.connect(**{**connection.get_connection_params(), "cursor_factory": psycopg.Cursor}) as other:
        other.execute("LOCK TABLE outbox_partition")
        with pytest.raises(StatementOverdue):
            one.write(consumer, [ROW])
        give_up_at = time.monotonic() + 10
        while "Lock" in sessions().values():
            assert time.monotonic() < give_up_at
            time.sleep(0.05)
    one.write(consumer, [ROW])
    assert len(rows(consumer)) == 1


def test_two_processes_that_write_the_same_rows_do_not_wait_for_each_other(consumer, writer):
    """While a rebalance is under way both have the partitions, each in an order of its own."""
    some = [replace(ROW, partition=Partition("orders", number)) for number in range(300)]
    writers = [(writer("host_1"), some), (writer("host_2"), some[::-1])]
    errors = []

    def work(one, given):
        try:
            for _ in range(30):
                one.write(consumer, given)
        except psycopg.Error as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=given) for given in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert len(rows(consumer)) == 300


def test_a_pooler_of_transactions_may_be_between(consumer, writer, own_servers, monkeypatch):
    """It keeps no session for a connection, and refuses options."""
    if (program := pgbouncer.installed()) is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("pgbouncer is not installed")
    folder, given = new_folder("pgbouncer"), connection.get_connection_params()
    url = urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{given['dbname']}"))
    try:
        with PgBouncer(program, url, Path(folder), pool_mode="transaction") as bouncer:
            monkeypatch.setattr(shown, "parameters", lambda alias: {"conninfo": bouncer.url})
            one, two = writer(), writer("host_2")
            for _ in range(3):
                one.write(consumer, [ROW])
                two.write(consumer, [ROW])
            assert [row[1] for row in rows(consumer)] == ["host_2"]
            one.close()
            two.close()
    finally:
        dispose(folder, [])
