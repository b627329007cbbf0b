"""Samples of the table: one a minute whoever takes them, kept for a day, and of no consequence when they fail."""

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from outbox import conf
from outbox.edges.postgres.at_least_once.marks import Marks
from outbox.edges.postgres.common import locks, table
from outbox.edges.postgres.counts import samples
from outbox.harvest.samples import SampleWriter
from outbox.messages.inserts import ORDER_LOCK
from outbox.operations import check
from outbox.operations.findings import Level
from tests.support.databases import fresh_database
from tests.support.tables import create_table, insert


@pytest.fixture
def database(migrated_template, monkeypatch):
    with fresh_database(os.environ["DATABASE_URL"], template=migrated_template) as url:
        monkeypatch.setattr(table, "parameters", lambda alias: psycopg.conninfo.conninfo_to_dict(url))
        with psycopg.connect(url, autocommit=True) as connection:
            yield connection


def rows(connection):
    return connection.execute(
        "SELECT backlog, oldest_age_s, stashed, delivered, rejected, holds, dead FROM outbox_sample"
    ).fetchall()


def sampler(leads=lambda: True, **given):
    return SampleWriter(conf.parse({}), leads, lambda: 7, **given)


@pytest.fixture
def blocked(database, monkeypatch):
    """A writer that waits for a slot of ordered=True, and the session that holds it."""
    monkeypatch.setattr(locks, "LONG_S", 0.1)
    url = table.parameters("default")
    with (
        psycopg.connect(**url, autocommit=True, application_name="psql") as holder,
        psycopg.connect(**url, autocommit=True) as writer,
        ThreadPoolExecutor(1) as pool,
    ):
        holder.execute("SELECT pg_advisory_lock(%s, 7)", [ORDER_LOCK])
        waits = pool.submit(writer.execute, f"SELECT pg_advisory_lock({ORDER_LOCK}, 7)")
        while not locks.waiting(database, ORDER_LOCK):
            assert not waits.done()
        yield holder
        holder.close()


def test_writers_that_wait_for_long_are_told_of(database, blocked, caplog):
    assert sampler().take()
    assert "writers_wait count=1 longest_s=0." in caplog.text
    assert f"pid {blocked.info.backend_pid} (role 'postgres', application_name 'psql', for 0 s)" in caplog.text
    caplog.clear()
    blocked.close()
    while locks.waiting(database, ORDER_LOCK):
        pass
    sampler().take()
    assert caplog.text == ""


@pytest.mark.parametrize("delivery", [conf.AT_LEAST_ONCE, conf.EXACTLY_ONCE])
def test_a_check_tells_who_is_in_the_way(database, blocked, delivery):
    space = Marks("outbox")._inspect(database)[0]
    blocked.execute("SELECT pg_advisory_lock(%s, -1)", [space])
    found = list(check._locks(database, conf.parse({"DELIVERY": delivery})))
    assert [finding.level for finding in found] == [Level.WARNING] * (1 + (delivery == conf.AT_LEAST_ONCE))
    assert "Writers with ordered=True wait for pid" in found[0].text
    assert all(f"pid {blocked.info.backend_pid} (role 'postgres'" in finding.text for finding in found)
    assert all(f"pg_terminate_backend({blocked.info.backend_pid})" in finding.remedy for finding in found)
    blocked.close()
    while locks.waiting(database, ORDER_LOCK):
        pass
    assert list(check._locks(database, conf.parse({"DELIVERY": delivery}))) == []


def test_a_sample_says_how_the_table_is(database):
    insert(database, "heroes", ["a", "b", "c"])
    database.execute("DELETE FROM outbox WHERE kafka_key = 'c'")
    database.execute("INSERT INTO outbox_hold (topic, key, record_id, reason) VALUES ('heroes', 'a', 1, 'rejected')")
    database.execute("INSERT INTO outbox_hold (topic, reason) VALUES ('heroes', 'paused')")
    database.execute("INSERT INTO outbox_dead (record_id, topic, key, reason) VALUES (9, 'heroes', 'a', 'rejected')")
    database.execute("SELECT pg_stat_force_next_flush()")
    assert sampler().take()
    ((backlog, oldest_age_s, stashed, delivered, rejected, holds, dead),) = rows(database)
    assert (backlog, stashed, delivered, rejected, holds, dead) == (2, 3, 1, 7, 1, 1)
    assert oldest_age_s > 0


def test_many_harvesters_write_one_sample_a_minute(database):
    def minute():
        return database.execute("SELECT date_trunc('minute', clock_timestamp() + interval '30 s')").fetchone()[0]

    while True:
        before = minute()
        with ThreadPoolExecutor(4) as pool:
            written = list(pool.map(lambda _: sampler().take(), range(8)))
        if minute() == before:
            break
        database.execute("DELETE FROM outbox_sample")
    assert sorted(written) == [False] * 7 + [True]
    assert len(rows(database)) == 1


def test_samples_are_forgotten_after_a_day(database):
    database.execute(
        "INSERT INTO outbox_sample (taken_at, backlog, oldest_age_s) "
        "SELECT now() - make_interval(hours => n), 0, 0 FROM generate_series(1, 48) n"
    )
    assert sampler().take()
    kept = database.execute("SELECT min(taken_at) > now() - interval '24 hours', count(*) FROM outbox_sample")
    assert kept.fetchone() == (True, 24)


def test_only_who_leads_takes_samples(database):
    asked, led = threading.Event(), threading.Event()

    def standing_by():
        asked.set()
        return False

    def leading():
        led.set()
        return True

    for leads, seen in ((standing_by, asked), (leading, led)):
        taking = sampler(leads, clock=lambda: 59.99)
        taking.start()
        assert seen.wait(30)
        if leads is standing_by:
            assert rows(database) == []
        else:
            while not rows(database):
                assert taking._thread.is_alive()
        taking.stop()
        taking._thread.join(30)


def test_a_table_without_companions_has_no_samples(database, caplog):
    database.execute("DROP TABLE outbox_sample")
    assert not sampler().take()
    database.execute("DROP TABLE outbox CASCADE")
    create_table(database)
    assert not sampler().take()
    assert caplog.text == ""


def test_trouble_is_told_once_with_its_end(database, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    taking = sampler()
    with monkeypatch.context() as broken:
        broken.setattr(samples, "take", lambda *given: (_ for _ in ()).throw(psycopg.OperationalError("gone")))
        assert not taking.take()
        assert not taking.take()
    assert taking.take()
    assert caplog.text.count("sampling_failed") == 1
    assert caplog.text.count("sampling_works_again") == 1
