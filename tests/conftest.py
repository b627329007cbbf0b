"""Fixtures that all tests may use."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import hypothesis
import psycopg
import pytest

from outbox.devstack import Postgres
from tests.support import pgbouncer, promtool
from tests.support.browsers import installed
from tests.support.databases import django, fresh_database

# Whoever starts the tests in the background has them ignore Ctrl-C, and every process that they start with them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long one example takes says how busy the machine is, not whether the code is right.
hypothesis.settings.register_profile("outbox", deadline=None)
hypothesis.settings.load_profile("outbox")

SPARK = "tests/spark/"
LEFT_OUT = "left out: the long fault runs (make torture) and the measurements (make bench)"
NO_PROMTOOL = "left out: alerts and dashboard on a real Prometheus, because promtool is not installed"
NO_PGBOUNCER = "left out: a real PgBouncer in front of a harvester, because pgbouncer is not installed"
NO_BROWSER = "left out: the tests in a browser, because chromium or chromedriver is not installed"


@pytest.fixture
def chance(pytestconfig: pytest.Config) -> random.Random:
    """The source of every random choice; `--seed` repeats it."""
    seed = pytestconfig.getoption("seed")
    seed = random.randrange(1_000_000) if seed is None else seed
    print("--seed", seed)
    return random.Random(seed)


@pytest.fixture(scope="session")
def postgres_of(own_servers: None) -> Iterator[Callable[[str], str]]:
    """URL of a PostgreSQL of the given major version, started at first use and shared by the whole run."""
    urls: dict[str, str] = {}
    with ExitStack() as stack:

        def url_of(major: str) -> str:
            if major not in urls:
                urls[major] = stack.enter_context(Postgres(major)).url
            return urls[major]

        yield url_of


@pytest.fixture(scope="session")
def postgres(postgres: Postgres | None) -> Postgres | None:
    """It does not wait for the disk of the machine, which tests share: no test has the machine crash, and a server that
    is killed has handed over to the system what it says is on disk."""
    if postgres is not None:
        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
    return postgres


@pytest.fixture(scope="session")
def migrated_template(postgres: Postgres | None) -> Iterator[str]:
    """A database that the test project's migrations made, for `fresh_database` to copy in a tenth of their time."""
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        migrated = django("migrate", "-v0", url=url)
        assert migrated.returncode == 0, migrated.stderr
        yield url.rpartition("/")[2]


@pytest.fixture(scope="session")
def browser_installed() -> None:
    if installed() is None:
        text = "no Chromium with chromedriver was found (Debian: apt-get install chromium chromium-driver)"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)


def pytest_addoption(parser: pytest.Parser) -> None:
    # Here and not beside the simulation, so that it is known however pytest is started.
    parser.addoption("--seed", type=int, default=None, help="one seed of the simulation, or of a torture run")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark's files come first, because one worker runs them all, then other files with slow tests, and the rest in
    random order: parallel workers then end together."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (not item.nodeid.startswith(SPARK), item.path not in slow))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers take whole files, for what the tests of a file share; those that share a Spark session go as one."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return SPARK if nodeid.startswith(SPARK) else super()._split_scope(nodeid)

    return Files(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if "torture" not in terminalreporter.config.option.markexpr.replace("not torture", ""):
        terminalreporter.write_line(LEFT_OUT)
    if installed() is None:
        terminalreporter.write_line(NO_BROWSER)
    if not promtool.installed() and not promtool.can_be_fetched():
        terminalreporter.write_line(NO_PROMTOOL)
    if not pgbouncer.installed():
        terminalreporter.write_line(NO_PGBOUNCER)
