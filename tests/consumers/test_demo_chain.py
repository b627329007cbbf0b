"""`make demo CHAIN=1`'s program: orders go through two services, while each of their processes is killed once."""

import os
import re
import signal
import subprocess
import sys

import psycopg
import pytest

from tests.consumers.conftest import SESSION_S
from tests.support.databases import ROOT

ALL_RIGHT = "(0 missing, 0 doubled, 0 of no order, 0 with another amount)"


class Demo:
    """In a session of its own, whose processes are those that it has started."""

    def __init__(self, *arguments, program=(sys.executable,), **environment):
        left_out = ("OUTBOX_BOOTSTRAP_SERVERS", "DATABASE_URL", "DJANGO_SETTINGS_MODULE")
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        self.process = subprocess.Popen(
            [*program, "-m", "example_project.chain", *arguments],
            cwd=ROOT,
            env={**kept, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def output(self, timeout_s):
        return self.process.communicate(timeout=timeout_s)

    def started(self):
        """The processes that still run, without the program itself."""
        arguments = ["ps", "-s", str(self.process.pid), "-o", "pid=,args="]
        listed = subprocess.run(arguments, capture_output=True, text=True, check=False).stdout.splitlines()
        found = {int(line.split()[0]): line for line in listed if "defunct" not in line}
        return {pid: line for pid, line in found.items() if pid != self.process.pid}

    def discard(self):
        """With a chance to stop what it has started."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        for pid in self.started():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def demo(quick_kafka, postgres):
    found = []

    def start(*arguments, **environment):
        given = {
            "DATABASE_URL": os.environ["DATABASE_URL"],
            "OUTBOX_BOOTSTRAP_SERVERS": quick_kafka.bootstrap_servers,
            "OUTBOX_SESSION_TIMEOUT": str(SESSION_S),
            "OUTBOX_HEARTBEAT_TIMEOUT": "0.7",
        }
        found.append(Demo(*arguments, **given, **environment))
        return found[-1]

    yield start
    for one in found:
        one.discard()


def assert_right(output, errors, orders):
    rows = dict(line.strip().split("  ", 1) for line in output.splitlines() if "  " in line.strip())
    rows = {name: value.strip() for name, value in rows.items()}
    assert rows["orders"] == f"{orders:,}  (0 not marked as paid)", errors
    assert rows["payments"] == rows["receipts"] == f"{orders:,}  {ALL_RIGHT}", errors
    assert re.search(r"[\d,]+ orders/s", rows["rate"])
    assert re.search(r"median [\d.]+ s, p99 [\d.]+ s", rows["order to receipt"])


def processes(each):
    names = [f"{service} {command}" for service in ("orders", "payments") for command in ("harvest", "consume")]
    return [f"{name} {number}" for number in range(1, each + 1) for name in names]


def databases():
    """Those of the demo, on the server of the tests."""
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        return connection.execute("SELECT datname FROM pg_database WHERE datname ~ '^(orders|payments)_'").fetchall()


def killed(errors):
    return re.findall(r"killed (\w+ \w+ \d) \(pid \d+\) (?:while it had|in the middle)", errors)


@pytest.mark.slow
def test_each_order_has_one_payment_and_one_receipt_although_each_process_is_killed(demo):
    started = demo("--orders", "300", "--processes", "1", "--limit", "90")
    output, errors = started.output(110)
    assert started.process.returncode == 0, output + errors
    assert killed(errors) == processes(1)
    assert_right(output, errors, 300)
    assert started.started() == {}


def test_ctrl_c_stops_everything_that_it_has_started(demo):
    started = demo("--orders", "300", "--processes", "1", "--limit", "60")
    line = next(line for line in started.process.stderr if "waiting for its receipt" in line)
    assert "placing one order" in line
    assert len(started.started()) == 4
    os.kill(started.process.pid, signal.SIGINT)
    output, errors = started.output(40)
    assert started.process.returncode == 130, errors
    assert "Traceback" not in errors
    assert (output, started.started(), databases()) == ("", {}, [])


@pytest.mark.torture
@pytest.mark.timeout(600)
def test_the_full_form_on_its_own_servers(own_servers):
    started = Demo(program=(sys.executable, "-m", "outbox.devstack", "run", "--", sys.executable))
    try:
        output, errors = started.output(400)
        assert started.process.returncode == 0, output + errors
        assert killed(errors) == processes(2)
        assert_right(output, errors, 20_000)
        assert started.started() == {}
    finally:
        started.discard()
