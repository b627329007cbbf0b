"""`run`, `up`, `status` and `down`, and the processes that are left after each kind of end."""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from outbox.devstack.processes import exists, wait_until
from tests.devstack.conftest import wait_gone

# Prints the addresses and the servers' process ids as one line, then waits.
COMMAND = """
import json, os, signal, sys, time
me = os.getpid()
print(json.dumps({"pid": me, "parent": os.getppid(), "url": os.environ["DATABASE_URL"],
    "servers": os.environ["OUTBOX_BOOTSTRAP_SERVERS"]}), flush=True)
time.sleep(120)
"""
ANSWER = """
import os, psycopg
with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
    print(connection.execute("SELECT version()").fetchone()[0])
from confluent_kafka.admin import AdminClient
print(len(AdminClient({"bootstrap.servers": os.environ["OUTBOX_BOOTSTRAP_SERVERS"]}).list_topics(timeout=10).brokers))
from outbox.devstack import origin
print([part["path"] for part in origin().values()])
raise SystemExit(7)
"""


def below(pid):
    """All processes of the owner: its children and those of its watchdog."""
    from outbox.devstack.watchdog import descendants

    return descendants(pid)


def programs(pids):
    """The command lines of those that still run."""
    shown = []
    for pid in pids:
        with contextlib.suppress(OSError):
            shown.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
    return shown


@pytest.fixture
def running(owner):
    """A `run` in the background whose command waits, with all processes below it."""
    process, line = owner("-m", "outbox.devstack", "run", "--", sys.executable, "-c", COMMAND)
    pids = below(process.pid)
    shown = " ".join(programs(pids))
    assert "kafka.Kafka" in shown
    assert "postgres" in shown
    return process, pids, json.loads(line)


def folders(pids):
    return {part for line in programs(pids) for part in line.split() if part.startswith("/tmp/outbox-devstack-server-")}


def test_run_gives_both_servers_and_passes_the_exit_status_with_an_empty_path(own_servers, devstack):
    done = devstack("run", "--postgres-setting", "wal_writer_delay=20ms", "--", sys.executable, "-c", ANSWER)
    assert done.returncode == 7, done.stderr
    version, brokers, paths = done.stdout.splitlines()
    assert version.startswith("PostgreSQL 18.")
    assert brokers == "1"
    assert not [
        path for path in json.loads(paths.replace("'", '"')) if path.startswith(("/usr/bin", "/usr/lib", "/opt"))
    ]
    assert "devstack: starting Kafka 4.1" in done.stderr
    assert "devstack: starting PostgreSQL 18" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill -9", "TERM"])
def test_nothing_stays_when_run_ends_by_a_signal(running, number):
    process, pids, _ = running
    left = folders(pids)
    os.kill(process.pid, number)
    assert wait_gone(pids) == []
    assert not [folder for folder in left if os.path.exists(folder)]


def test_ctrl_c_ends_the_command_and_the_servers(running):
    process, pids, _ = running
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    process.wait(15)
    assert process.returncode == 128 + signal.SIGINT or process.returncode == 1
    assert wait_gone(pids) == []


def test_ctrl_c_while_starting_leaves_nothing(owner):
    program = "import sys; print('here', flush=True); from outbox.devstack.__main__ import main; sys.exit(main())"
    process, _ = owner("-c", program, "run", "--", "true")
    assert wait_until(lambda: "kafka.Kafka" in " ".join(programs(below(process.pid))), 30)
    pids = below(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 130
    assert wait_gone(pids) == []


def test_a_killed_watchdog_takes_the_servers_with_it(running):
    _, pids, _ = running
    (watchdog,) = [pid for pid in pids if "watchdog.py" in "".join(programs([pid]))]
    servers = below(watchdog)
    os.kill(watchdog, signal.SIGKILL)
    assert wait_gone(servers) == []


def test_a_forked_child_of_a_killed_owner_does_not_keep_the_servers(owner):
    program = (
        "import os, time\n"
        "from outbox.devstack import Postgres\n"
        "server = Postgres().start()\n"
        "child = os.fork()\n"
        "if child: print(child, *server.pids, flush=True)\n"
        "time.sleep(120)\n"
    )
    process, line = owner("-c", program)
    child, *servers = map(int, line.split())
    os.kill(process.pid, signal.SIGKILL)
    assert wait_gone(servers) == []
    assert exists(child)  # it held a copy of the watchdog's socket all the time


def test_both_addresses_in_the_environment_start_nothing(devstack):
    show = "import os; print(os.environ['DATABASE_URL'], os.environ['OUTBOX_BOOTSTRAP_SERVERS'])"
    given = {"DATABASE_URL": "postgresql://elsewhere/db", "OUTBOX_BOOTSTRAP_SERVERS": "elsewhere:9092"}
    done = devstack("run", "--", sys.executable, "-c", show, **given)
    assert done.returncode == 0
    assert done.stdout.split() == list(given.values())
    assert done.stderr == ""


def test_up_status_down(own_servers, devstack, tmp_path):
    up = devstack("up")
    try:
        assert up.returncode == 0, up.stderr
        assert up.stdout.startswith("export DATABASE_URL=postgresql://")
        assert "starting Kafka" in up.stderr
        again = devstack("up")
        assert again.stdout == up.stdout
        status = json.loads(devstack("status", "--json").stdout)
        assert status["running"]
        # Workers of PostgreSQL come and go by themselves.
        assert any(all(map(exists, json.loads(devstack("status", "--json").stdout)["pids"])) for _ in range(5))
        assert {part["origin"].split()[0] for part in status["origin"].values()} == {"wheel", "Maven"}
        state = tmp_path / ".devstack" / "state.json"
        assert state.with_name(".gitignore").read_text() == "*\n", "nobody commits this folder"
        assert state.stat().st_mode & 0o077 == 0
    finally:
        down = devstack("down")
    assert down.returncode == 0
    assert wait_gone(status["pids"]) == []
    assert not state.exists()
    assert "No servers run in" in devstack("status").stdout


def test_what_a_killed_up_leaves_is_detected_and_cleaned(own_servers, devstack, tmp_path):
    devstack("up", "--dir", "elsewhere")
    status = json.loads(devstack("status", "--dir", "elsewhere", "--json").stdout)
    os.kill(status["pid"], signal.SIGKILL)
    assert wait_gone(status["pids"]) == []
    assert (tmp_path / "elsewhere" / "state.json").exists()
    assert not json.loads(devstack("status", "--dir", "elsewhere", "--json").stdout)["running"]
    assert not (tmp_path / "elsewhere" / "state.json").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run"], "after a double dash"),
        (["run", "--kafka-property", "x", "--", "true"], "'x' has no value"),
        (["run", "--postgres", "9", "--", "true"], "PostgreSQL '9' is not available"),
        (["run", "--kafka", "1", "--", "true"], "Kafka '1' is not available"),
    ],
)
def test_mistakes_are_one_line(devstack, arguments, text):
    done = devstack(*arguments)
    assert done.returncode == 1
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_that_does_not_exist_is_named(devstack):
    done = devstack(
        "run", "--", "no-such-program", DATABASE_URL="postgresql://elsewhere/db", OUTBOX_BOOTSTRAP_SERVERS="elsewhere:1"
    )
    assert done.returncode == 1
    assert "The system cannot run 'no-such-program'" in done.stderr
