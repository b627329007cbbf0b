"""Sessions: order, outcomes, and bounds on every wait, on a real PostgreSQL that hangs, dies and returns."""

import queue
import time
from contextlib import contextmanager
from functools import partial

import psycopg
import pytest

from outbox.edges.postgres.common.session import Session, StatementOverdue, close_quietly
from outbox.edges.postgres.common.table import connect_bounded
from tests.support.proxy import TO_CLIENT, Proxy


@contextmanager
def session_on(url):
    outcomes = queue.Queue()
    connect = partial(connect_bounded, {"conninfo": url, "connect_timeout": 2}, statement_timeout_s=5)
    session = Session("test", connect, outcomes.put)
    try:
        yield session, outcomes
    finally:
        session.close()
        session.interrupt()
        assert session.join(10)


def ask(text):
    return lambda connection: connection.execute(text).fetchone()[0]


def test_jobs_run_in_order_on_one_connection(url):
    with session_on(url) as (session, outcomes):
        for number in range(3):
            session.submit(ask("SELECT pg_backend_pid()"), number, 5)
        first, *others = [outcomes.get(timeout=10) for _ in range(3)]
        assert [outcome[0] for outcome in (first, *others)] == [0, 1, 2]
        assert {outcome[1] for outcome in others} == {first[1]}


def test_a_refused_statement_keeps_the_connection_and_renew_replaces_it(url):
    with session_on(url) as (session, outcomes):
        session.submit(ask("SELECT pg_backend_pid()"), "pid", 5)
        session.submit(ask("SELECT 1/0"), "error", 5)
        session.submit(ask("SELECT pg_backend_pid()"), "pid", 5)
        session.submit(ask("SELECT pg_backend_pid()"), "pid", 5, renew=True)
        before, error, after, renewed = [outcomes.get(timeout=10) for _ in range(4)]
        assert isinstance(error[2], psycopg.errors.DivisionByZero)
        assert before[1] == after[1] != renewed[1]


def test_a_server_that_does_not_answer_is_given_up(url):
    port = int(psycopg.conninfo.conninfo_to_dict(url)["port"])
    with Proxy(target=port) as proxy, session_on(proxy.rewrite(url)) as (session, outcomes):
        session.submit(ask("SELECT 1"), "first", 5)
        assert outcomes.get(timeout=10)[1] == 1
        proxy.hold(TO_CLIENT)
        begun = time.monotonic()
        session.submit(ask("SELECT 2"), "second", 2)
        assert isinstance(outcomes.get(timeout=30)[2], StatementOverdue)
        assert time.monotonic() - begun < 6
        proxy.heal()
        session.submit(ask("SELECT 3"), "third", 5)
        assert outcomes.get(timeout=10)[1] == 3


def test_an_interrupted_session_ends_at_once(url):
    with session_on(url) as (session, outcomes):
        session.submit(ask("SELECT 1 FROM pg_sleep(60)"), "slow", 60)
        time.sleep(0.1)  # either order of the two is fine
        session.interrupt()
        assert isinstance(outcomes.get(timeout=20)[2], StatementOverdue)


def test_a_killed_backend_is_reported_and_the_next_job_connects_again(url):
    with session_on(url) as (session, outcomes), psycopg.connect(url, autocommit=True) as other:
        session.submit(ask("SELECT pg_backend_pid()"), "pid", 5)
        pid = outcomes.get(timeout=10)[1]
        other.execute("SELECT pg_terminate_backend(%s)", [pid])
        session.submit(ask("SELECT 1"), "lost", 5)
        assert isinstance(outcomes.get(timeout=10)[2], psycopg.OperationalError)
        session.submit(ask("SELECT pg_backend_pid()"), "pid", 5)
        assert outcomes.get(timeout=10)[1] != pid


def test_a_server_that_is_down_is_not_stormed(url):
    with Proxy(target=int(psycopg.conninfo.conninfo_to_dict(url)["port"])) as proxy:
        proxy.refuse()
        with session_on(proxy.rewrite(url)) as (session, outcomes):
            for number in range(50):
                session.submit(ask("SELECT 1"), number, 5)
            errors = [outcomes.get(timeout=10)[2] for _ in range(50)]
            assert all(isinstance(error, psycopg.OperationalError) for error in errors)
            assert proxy.accepted < 10
            proxy.heal()
            give_up_at = time.monotonic() + 10
            found = None
            while found != 1:
                assert time.monotonic() < give_up_at
                session.submit(ask("SELECT 1"), "again", 5)
                found = outcomes.get(timeout=10)[1]
                time.sleep(0.02)


def test_a_wrong_password_or_database_is_one_clear_error(url):
    with session_on(url + "_missing") as (session, outcomes):
        session.submit(ask("SELECT 1"), "x", 5)
        error = outcomes.get(timeout=10)[2]
        assert isinstance(error, psycopg.OperationalError)
        assert "does not exist" in str(error)


@pytest.mark.parametrize("times", [1, 2])
def test_closing_twice_is_harmless_and_what_was_submitted_is_done(url, times):
    with session_on(url) as (session, outcomes):
        session.submit(ask("SELECT 42"), "x", 5)
        for _ in range(times):
            session.close()
        assert outcomes.get(timeout=10)[1] == 42
        assert session.join(5)


def test_a_connection_is_closed_whatever_its_end_has_to_say():
    class Broken:
        def close(self):
            raise self.error

    connection = Broken()
    connection.error = psycopg.OperationalError("the server is gone")
    close_quietly(connection)
    close_quietly(None)
    connection.error = KeyError("not of PostgreSQL")
    with pytest.raises(KeyError):
        close_quietly(connection)
