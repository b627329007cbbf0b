"""A harvester behind a pooler: PgBouncer in each of its modes, where there is one, and one that is recognised only
when it leads to another server."""

import os
import re
import threading
import time
from pathlib import Path

import psycopg
import pytest
from django.core.management import CommandError, call_command

from outbox.conf import AT_LEAST_ONCE, EXACTLY_ONCE
from outbox.devstack.folders import dispose, new_folder
from outbox.edges.postgres.common import backends, table
from outbox.edges.postgres.common.backends import OptionsIgnored, Pooled, SessionShared
from outbox.edges.postgres.exactly_once import companions
from outbox.edges.postgres.exactly_once.companions import Companions
from outbox.harvest import Harvester
from outbox.harvest.exactly_once.resolve import Resolver
from outbox.harvest.exactly_once.rounds import database
from outbox.spark.engine import settings as setup
from tests.harvest.exactly_once.bench import Bench, stopped, wait_until
from tests.support import pgbouncer
from tests.support.databases import fresh_database
from tests.support.pgbouncer import PgBouncer
from tests.support.pooler import Pooler

IGNORING = {"ignore_startup_parameters": "options"}
TRANSACTIONS = {"pool_mode": "transaction"}
REMEDY = "Connect to the server directly, or through a pooler in session mode that passes options on"
WITHIN_S = 30  # an outage would be waited for without end
SETTINGS = {**table.FORMATS, **table.PLANNER, **companions._OPTIONS}


@pytest.fixture
def bench(postgres, bootstrap_servers):
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        made = Bench(url, bootstrap_servers)
        yield made
        made.close()


@pytest.fixture
def unseen(monkeypatch):
    """The pooler was not recognised at the start, and prepares statements wherever they are used."""
    monkeypatch.setattr(backends, "require_own", lambda *given: None)
    monkeypatch.setattr(companions, "_NEVER_BY_ITSELF", None)


@pytest.fixture
def behind(bench, own_servers, monkeypatch):
    """Start a PgBouncer in front of the bench's server: the harvester's alias leads to it."""
    if (program := pgbouncer.installed()) is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("pgbouncer is not installed")
    folders, started = [], []

    def start(**settings):
        folders.append(new_folder("pgbouncer"))
        started.append(PgBouncer(program, bench.url, Path(folders[-1]), **settings))
        started[-1].__enter__()
        lead(monkeypatch, started[-1].url)
        return started[-1].url

    yield start
    for one in started:
        one.__exit__(None, None, None)
    for folder in folders:
        dispose(folder, [])


def lead(monkeypatch, url):
    monkeypatch.setattr("outbox.edges.postgres.common.table.parameters", lambda alias: {"conninfo": url})
    monkeypatch.setattr("outbox.spark.engine.settings.parameters", lambda alias: {"conninfo": url})


def _name(bench):
    return bench.url.rpartition("/")[2]


def set_on_the_database(bench, statement_timeout_s):
    """What a pooler drops, as an administrator would try to make up for it."""
    timeout_ms = 1000 * statement_timeout_s
    limits = {"statement_timeout": timeout_ms, "lock_timeout": timeout_ms // 2}
    limits["idle_in_transaction_session_timeout"] = timeout_ms
    for name, value in {**SETTINGS, **limits}.items():
        bench.db.execute(f"ALTER DATABASE {_name(bench)} SET {name} = '{value}'")


def refused(bench, **settings):
    begun = time.monotonic()
    with pytest.raises(Pooled, match=REMEDY) as caught:
        Harvester(bench.conf(**settings)).start().wait(WITHIN_S)
    assert time.monotonic() - begun < WITHIN_S
    return caught.type


@pytest.mark.parametrize("settings", [{}, TRANSACTIONS, IGNORING, {**TRANSACTIONS, **IGNORING}], ids=str)
def test_a_pgbouncer_that_refuses_or_drops_options_ends_every_start(bench, behind, settings):
    behind(**settings)
    for delivery in (EXACTLY_ONCE, AT_LEAST_ONCE):
        assert refused(bench, DELIVERY=delivery) is OptionsIgnored
    with pytest.raises(OptionsIgnored, match=REMEDY):
        setup.look(bench.conf(), "owner")
    with pytest.raises(OptionsIgnored, match=REMEDY):
        Resolver(bench.conf())
    with pytest.raises(CommandError, match=REMEDY):
        call_command("outbox_lanes")


@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_a_pgbouncer_of_transactions_is_recognised_by_what_it_does(bench, behind, mode):
    behind(**IGNORING, pool_mode=mode)
    set_on_the_database(bench, 10)
    for delivery in (EXACTLY_ONCE, AT_LEAST_ONCE):
        assert refused(bench, DELIVERY=delivery) is SessionShared
    with pytest.raises(SessionShared, match=REMEDY):
        setup.look(bench.conf(), "owner")


def test_a_pgbouncer_of_sessions_will_do_where_the_settings_are_made_otherwise(bench, behind):
    url = behind(**IGNORING)
    set_on_the_database(bench, 10)
    with psycopg.connect(url) as connection:
        assert connection.execute("SHOW enable_seqscan").fetchone() == ("off",)
    bench.stash(["a", "b", "a"])
    with Harvester(bench.conf()):
        bench.wait_empty()
    bench.check()


@pytest.mark.parametrize("delivery", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_any_pooler_of_transactions_ends_the_start(bench, monkeypatch, delivery):
    with Pooler(bench.url) as pooler:
        lead(monkeypatch, pooler.url)
        assert refused(bench, DELIVERY=delivery) is SessionShared
        with pytest.raises(SessionShared, match=REMEDY):
            setup.look(bench.conf(), "owner")


@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_connection_that_outlives_a_failover_deletes_nothing_there(bench, unseen, monkeypatch, is_guarded):
    """The copy lags by one batch, and draws its ids a second time. Without the guard records are lost."""
    held, gate = threading.Event(), threading.Event()
    failpoint = database.failpoint

    def hold(name):
        failpoint(name)
        if name == "before-purge" and not gate.is_set():
            held.set()
            gate.wait(30)

    monkeypatch.setattr(database, "failpoint", hold)
    if not is_guarded:
        monkeypatch.setattr(backends, "BACKEND", "''")
        monkeypatch.setattr(backends, "require", lambda *given: None)
        monkeypatch.setattr(Companions, "__init__", unguarded(Companions.__init__))
    statements = Companions("outbox", "outbox_id_seq")
    statements.state(bench.db, 1)
    statements.purged(bench.db, 0)
    bench.db.close()
    with fresh_database(os.environ["DATABASE_URL"], _name(bench)) as copy, Pooler(bench.url, keeps=True) as pooler:
        bench.db = psycopg.connect(bench.url, autocommit=True)
        bench.stash(["a"] * 5)
        with bench.working(url=pooler.url) as host, psycopg.connect(copy, autocommit=True) as promoted:
            assert held.wait(30)
            pooler.lead_to(copy)
            ids = bench.stash(["b"] * 5, connection=promoted)
            gate.set()
            if is_guarded:
                assert "ids were drawn a second time" in stopped(host)
            else:
                wait_until(lambda: host.worker.statistics().unpurged == 0)
            left = promoted.execute("SELECT count(*) FROM outbox WHERE id = ANY(%s)", [ids]).fetchone()[0]
            assert left == (5 if is_guarded else 0), "none of them was sent"


def test_a_read_from_another_server_is_dropped_and_begun_anew(bench, unseen, caplog):
    Companions("outbox", "outbox_id_seq").state(bench.db, 1)
    bench.db.close()
    with fresh_database(os.environ["DATABASE_URL"], _name(bench)) as copy, Pooler(bench.url, keeps=True) as pooler:
        bench.db = psycopg.connect(bench.url, autocommit=True)
        with bench.working(url=pooler.url) as host, psycopg.connect(copy, autocommit=True) as promoted:
            wait_until(lambda: host.worker._rounds and host.worker._rounds.reads)
            pooler.lead_to(copy)
            wait_until(lambda: re.search("read_failed .*a pooler gives it another one", caplog.text), 10)
            bench.stash(["a"] * 5, connection=promoted)
            wait_until(lambda: promoted.execute("SELECT count(*) FROM outbox").fetchone() == (0,))
    bench.check()


def unguarded(init):
    def without(companions, *given):
        init(companions, *given)
        for name in ("_purge", "_purge_counted", "_purge_plain"):
            text = getattr(companions, name).replace("= %(backend)s", "<> %(backend)s")
            setattr(companions, name, text)

    return without
