"""Processes that own a stack, for tests that kill them, and a search for what they leave behind."""

import os
import signal
import subprocess
import sys

import pytest

from outbox.devstack.processes import exists, wait_until

HIDDEN = (
    "DATABASE_URL",
    "OUTBOX_BOOTSTRAP_SERVERS",
    "OUTBOX_DEVSTACK_ORIGIN",
    "OUTBOX_DEVSTACK_FORBIDDEN",
    "OUTBOX_TEST_REQUIRE",
    "CI",
    "DJANGO_SETTINGS_MODULE",
    "PYTEST_XDIST_WORKER",
    "PYTEST_XDIST_WORKER_COUNT",
    "PYTEST_XDIST_TESTRUNUID",
)


def wait_gone(pids, timeout_s=15):
    wait_until(lambda: not any(map(exists, pids)), timeout_s)
    return [pid for pid in pids if exists(pid)]


@pytest.fixture
def empty_environment(tmp_path):
    """An environment without this run's stack, and with an empty PATH."""
    kept = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    (tmp_path / "empty").mkdir()
    return {**kept, "PATH": str(tmp_path / "empty"), "JAVA_HOME": "/nonexistent"}


@pytest.fixture
def devstack(empty_environment, tmp_path):
    """Runs `python -m outbox.devstack` to its end."""

    def run(*arguments, **environment):
        return subprocess.run(
            [sys.executable, "-m", "outbox.devstack", *arguments],
            cwd=tmp_path,
            env={**empty_environment, **environment},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    return run


@pytest.fixture
def owner(own_servers, empty_environment, tmp_path):
    """Starts a Python program in the background that prints one line when it is ready; ended after the test."""
    started = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=empty_environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.communicate(timeout=10)[1])
        return process, line.strip()

    yield start
    for process in started:
        with process:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
