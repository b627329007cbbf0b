"""PostgreSQL of the wheel and of Maven, as a real server."""

import os
import signal
import threading
import time
from pathlib import Path

import environ
import psycopg
import pytest

from outbox.devstack import Postgres
from outbox.devstack.processes import exists
from outbox.downloads.errors import DevstackError, StartError


@pytest.fixture(scope="module")
def server(own_servers):
    with Postgres(settings={"wal_writer_delay": "10ms", "application_name": "it's"}) as server:
        yield server


def show(server, name):
    with server.connect() as connection:
        return connection.execute("SELECT current_setting(%s)", [name]).fetchone()[0]


def test_the_address_is_one_that_psycopg_and_django_environ_accept(server):
    with psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT current_database()").fetchone() == ("outbox",)
    parsed = environ.Env.db_url_config(server.url)
    assert parsed["ENGINE"] == "django.db.backends.postgresql"
    assert (parsed["HOST"], parsed["PORT"], parsed["NAME"]) == ("127.0.0.1", int(server.port), "outbox")


def test_a_wrong_password_is_refused(server):
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(server.url.replace(server.password, "wrong"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fsync", "on"),
        ("full_page_writes", "on"),
        ("synchronous_commit", "on"),
        ("max_connections", "200"),
        ("listen_addresses", "127.0.0.1"),
        ("unix_socket_directories", ""),
        ("server_encoding", "UTF8"),
        ("wal_writer_delay", "10ms"),
    ],
)
def test_settings(server, name, value):
    assert show(server, name) == value


def test_the_server_never_runs_as_root(server):
    status = Path(f"/proc/{server.pid}/status").read_text()
    assert "Uid:\t0\t" not in status


def insert(server):
    with server.connect() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
        connection.execute("INSERT INTO kept VALUES (1)")


def test_restart_and_kill_keep_data_and_port(own_servers):
    with Postgres() as server:
        url = server.url
        insert(server)
        server.restart()
        insert(server)
        before = server.pids
        server.kill()
        assert not [pid for pid in before if exists(pid)]
        server.start()
        assert server.url == url
        with server.connect() as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (2,)


def test_a_paused_server_answers_when_resumed(server):
    with server.connect() as connection:
        server.pause()
        answered = threading.Event()

        def ask():
            connection.execute("SELECT 1")
            answered.set()

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            assert not answered.wait(0.3)
        finally:
            server.resume()
        asking.join(10)
        assert answered.is_set()


def test_a_paused_server_can_be_discarded(own_servers):
    server = Postgres().start()
    pids = server.pids
    server.pause()
    began = time.monotonic()
    server.discard()
    assert time.monotonic() - began < 15  # it acted on its signal before the timeout
    assert not [pid for pid in pids if exists(pid)]
    assert not server.folder.exists()


@pytest.mark.parametrize("major", ["14", "18"])
def test_the_oldest_and_the_newest_version_answer(major, postgres_of):
    with psycopg.connect(postgres_of(major)) as connection:
        (version,) = connection.execute("SELECT version()").fetchone()
    assert version.startswith(f"PostgreSQL {major}.")


def test_an_unknown_version_names_those_there_are():
    with pytest.raises(DevstackError, match=r"'9' is not available\. Choose one of 14, 15, 16, 17, 18"):
        _ = Postgres("9").version


def test_a_failed_start_names_its_log_and_keeps_it(own_servers):
    server = Postgres(settings={"shared_buffers": "lots"})
    with pytest.raises(StartError, match="shared_buffers") as caught:
        server.start()
    assert str(caught.value.log) in str(caught.value)
    assert caught.value.log.exists()
    server.discard()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs the copy")
def test_root_copies_what_the_servers_account_cannot_reach(own_servers, tmp_path, monkeypatch):
    from outbox.devstack import accounts

    monkeypatch.setattr(accounts, "reachable", lambda path: False)
    monkeypatch.setattr(accounts.tempfile, "tempdir", str(_passable(tmp_path)))
    with Postgres() as server:
        assert str(tmp_path) in str(server.install.bin)
        assert show(server, "server_version").startswith(server.version)


def _passable(folder):
    base = 3 if "PYTEST_XDIST_WORKER" in os.environ else 2  # a parallel worker has a folder of its own in between
    for parent in (folder, *folder.parents[:base]):
        parent.chmod(parent.stat().st_mode | 0o011)
    return folder


def test_stop_before_start_and_twice_is_safe(own_servers):
    server = Postgres()
    server.stop()
    server.start()
    process = server.pid
    server.stop()
    server.stop()
    assert not exists(process)
    server.discard()
    server.discard()


def test_asking_an_unstarted_server_says_what_to_do():
    server = Postgres()
    try:
        with pytest.raises(DevstackError, match=r"Call start\(\)"):
            _ = server.pid
    finally:
        server.discard()


def test_a_killed_postmaster_is_noticed(server):
    victim = Postgres().start()
    os.kill(victim.pid, signal.SIGKILL)
    assert victim.process.wait(10)
    assert not victim.is_running
    victim.discard()
