"""pytest plugin: one PostgreSQL and one Kafka per run, started only when tests need them.

Load it with `-p outbox.devstack.pytest_plugin`, so that the addresses are in the environment before pytest-django reads
the settings. If the environment has addresses already, the tests use these, and the plugin starts nothing.

After the collection PostgreSQL starts if a selected test asks for a database, Kafka if one asks for `kafka` or
`bootstrap_servers`. If a server cannot start, the tests that need it are skipped, with one line in the summary. With
`CI` or `OUTBOX_TEST_REQUIRE` in the environment the run ends instead.

With pytest-xdist the workers share a Kafka, which the controlling process starts before them; they treat it as one from
outside. Each worker has a PostgreSQL of its own: locks and snapshots are the server's, so one worker's test could see a
transaction of another's, or wait for it.

`--no-servers` selects the tests that ask for no server. It sets no addresses and starts nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from outbox.devstack import origins, processes
from outbox.devstack.kafka import Kafka
from outbox.devstack.postgres import Postgres
from outbox.devstack.stack import DATABASE, SERVERS, Stack, StackOptions
from outbox.exceptions import OutboxError

_KAFKA_FIXTURES = {"kafka", "bootstrap_servers"}
_DATABASE_FIXTURES = {"postgres", "db", "transactional_db", "django_db_setup", "live_server"}
_OWN_FIXTURES = {"own_servers", "kafka_factory", "postgres_factory"}
_MISSING = "outbox_devstack_missing"  # of a worker's input: why Kafka did not start
_LOGS = "outbox_devstack_logs"  # of a worker's output
_OWN = "OUTBOX_DEVSTACK_OWN_POSTGRES"  # in the environment of workers: the address is of a server that nobody starts


def _must_be_complete() -> bool:
    return any(os.environ.get(name, "").lower() not in ("", "0", "false") for name in ("CI", "OUTBOX_TEST_REQUIRE"))


class _Start:
    """A server that is being started in the background."""

    def __init__(self, name: str, start: Callable[[], None]) -> None:
        self.name = name
        self.error: Exception | None = None
        self._start = start
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"start {self.name}", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        self.begin()
        assert self._thread is not None
        self._thread.join()
        if self.error is not None and _must_be_complete():
            pytest.exit(f"{self.name} is missing, but this run requires it: {self.error}", returncode=3)

    def _run(self) -> None:
        try:
            self._start()
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        self.error = error


class DevstackPlugin:
    """The stack of this run."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.postgres = _Start("PostgreSQL", stack.start_postgres)
        self.kafka = _Start("Kafka", stack.start_kafka)
        self.parts = (self.postgres, self.kafka)
        self.logs: list[Path] = []
        self._failed = False

    def require(self, part: _Start) -> None:
        part.finish()
        if part.error is not None:
            pytest.skip(f"{part.name} did not start: {part.error}")

    def pytest_report_header(self) -> list[str]:
        parts = self.stack.origin.items()
        return [f"devstack: {name} {part['version']} from {part['origin']}" for name, part in parts]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if any(map(_needs_kafka, items)):
            self.kafka.begin()
        waiting = [item for item in items if _needs_database(item)]
        if waiting:
            self.postgres.finish()
        if self.postgres.error is not None:
            reason = pytest.mark.skip(reason=f"PostgreSQL did not start: {self.postgres.error}")
            for item in waiting:
                item.add_marker(reason)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Before a worker starts: it must know which server is missing. No other process collects tests and could say
        so."""
        self.kafka.finish()
        node.workerinput[_MISSING] = self.kafka.error and str(self.kafka.error)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.logs += [Path(log) for log in getattr(node, "workeroutput", {}).get(_LOGS, ())]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        missing = getattr(session.config, "workerinput", {}).get(_MISSING)
        if missing:
            self.kafka.fail(OutboxError(missing))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        self._failed = exitstatus == pytest.ExitCode.TESTS_FAILED
        self.logs += self.stack.logs
        if self._failed and hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_LOGS] = [str(log) for log in self.logs]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for part in self.parts:
            if part.error is not None:
                terminalreporter.line(
                    f"devstack: tests that need {part.name} were skipped: {str(part.error).splitlines()[0]}"
                )
        if self._failed:
            for log in self.logs:
                terminalreporter.line(f"devstack: this run kept its log: {log}")

    def pytest_unconfigure(self) -> None:
        for part in self.parts:
            if part._thread is not None:
                part._thread.join()
        self.stack.discard(keep_logs=self._failed)


def _fixtures(item: pytest.Item) -> set[str]:
    return set(getattr(item, "fixturenames", ()))


def _needs_kafka(item: pytest.Item) -> bool:
    return bool(_KAFKA_FIXTURES & _fixtures(item))


def _needs_server(item: pytest.Item) -> bool:
    return _needs_database(item) or _needs_kafka(item) or bool(_OWN_FIXTURES & _fixtures(item))


def _needs_database(item: pytest.Item) -> bool:
    if _DATABASE_FIXTURES & _fixtures(item) or item.get_closest_marker("django_db"):
        return True
    # Django's own test classes reach the database without naming a fixture.
    return bool(getattr(getattr(item, "cls", None), "databases", None))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("devstack", "embedded PostgreSQL and Kafka")
    group.addoption("--kafka-version", metavar="LINE", help="Kafka's release line, for instance 3.9")
    group.addoption("--postgres-version", metavar="MAJOR", help="PostgreSQL's major version, for instance 14")
    group.addoption("--no-servers", action="store_true", help="run only the tests that need no server, and start none")


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """Set the addresses. A wrapper, because pytest-django reads the settings in this same hook."""
    options = early_config.known_args_namespace
    if options.no_servers:
        before = {processes.FORBIDDEN: os.environ.get(processes.FORBIDDEN)}
        os.environ[processes.FORBIDDEN] = "1"
        early_config.add_cleanup(lambda: _restore(before))
    elif not _only_looks(options):
        _begin(early_config, StackOptions(kafka=options.kafka_version, postgres=options.postgres_version))
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("no_servers"):
        left_out = [item for item in items if _needs_server(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not _needs_server(item)]


def _only_looks(options: Any) -> bool:
    names = ("collectonly", "help", "version", "showfixtures", "show_fixtures_per_test", "markers")
    return any(getattr(options, name, False) for name in names)


def _begin(config: pytest.Config, options: StackOptions) -> None:
    controls = _is_distributed(config.known_args_namespace)
    given = dict(os.environ)
    told = {}
    if "PYTEST_XDIST_WORKER" in given and given.get(_OWN):
        del given[DATABASE]
        told = {_OWN: "", origins.VARIABLE: given[origins.VARIABLE]}
    try:
        plugin = DevstackPlugin(Stack(options, environment=given))
        if controls and plugin.stack.postgres is not None:
            told = {_OWN: "1"}
        wanted = {**plugin.stack.environment, **told}
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
    except OutboxError as error:
        if _must_be_complete():
            raise pytest.UsageError(str(error)) from error
        config.issue_config_time_warning(UserWarning(f"devstack: no server is started: {error}"), stacklevel=2)
        return
    config.add_cleanup(lambda: _restore(before))
    config.pluginmanager.register(plugin, "outbox-devstack-run")
    if controls:
        plugin.kafka.begin()


def _is_distributed(options: Any) -> bool:
    """Whether this process distributes the tests to workers."""
    return bool(getattr(options, "numprocesses", None) or getattr(options, "tx", None))


def _restore(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _plugin(config: pytest.Config) -> DevstackPlugin | None:
    found: DevstackPlugin | None = config.pluginmanager.get_plugin("outbox-devstack-run")
    return found


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Postgres | None:
    """The run's PostgreSQL, started. None if DATABASE_URL came from outside. Do not kill it: other tests use it too."""
    plugin = _plugin(pytestconfig)
    if plugin is None:
        _skip_unless(DATABASE)
        return None
    plugin.require(plugin.postgres)
    return plugin.stack.postgres


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config) -> Kafka | None:
    """The run's Kafka, started. None if OUTBOX_BOOTSTRAP_SERVERS came from outside. Do not kill it."""
    plugin = _plugin(pytestconfig)
    if plugin is None:
        _skip_unless(SERVERS)
        return None
    plugin.require(plugin.kafka)
    return plugin.stack.kafka


@pytest.fixture(scope="session")
def bootstrap_servers(kafka: Kafka | None) -> str:
    """Addresses of the run's Kafka, started."""
    return os.environ[SERVERS]


def _skip_unless(variable: str) -> None:
    if not os.environ.get(variable):
        pytest.skip(f"{variable} is not set and the devstack is not installed")


@pytest.fixture(scope="session")
def own_servers() -> None:
    """For tests that start servers by themselves: with it, `--no-servers` skips them."""


@pytest.fixture
def kafka_factory(pytestconfig: pytest.Config) -> Iterator[Callable[..., Kafka]]:
    """Makes a started Kafka for one test, to kill, pause or configure; takes the arguments of `Kafka`."""
    with ExitStack() as own:

        def make(version: str | None = None, **arguments: Any) -> Kafka:
            cluster = Kafka(version or pytestconfig.getoption("kafka_version"), **arguments)
            return own.enter_context(cluster)

        yield make


@pytest.fixture
def postgres_factory(pytestconfig: pytest.Config) -> Iterator[Callable[..., Postgres]]:
    """Makes a started PostgreSQL for one test; takes the arguments of `Postgres`."""
    with ExitStack() as own:

        def make(version: str | None = None, **arguments: Any) -> Postgres:
            server = Postgres(version or pytestconfig.getoption("postgres_version"), **arguments)
            return own.enter_context(server)

        yield make
