"""One PostgreSQL server on a loopback port, as durable as in production."""

from __future__ import annotations

import secrets
import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from outbox.devstack import accounts, ports
from outbox.devstack.folders import dispose, new_folder
from outbox.devstack.processes import ServerProcess, wait_until
from outbox.downloads import installs
from outbox.downloads.errors import DevstackError, StartError
from outbox.exceptions import missing_extra

if TYPE_CHECKING:
    import psycopg

_START_TIMEOUT_S = 180.0  # for a server that neither ends nor becomes ready, as on an overloaded machine
_STOP_TIMEOUT_S = 20.0
_ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": "/usr/bin:/bin"}
DEFAULTS = {
    "listen_addresses": ports.HOST,
    "unix_socket_directories": "",  # the path of a socket is limited, and test folders have long paths
    "max_connections": "200",
    "dynamic_shared_memory_type": "mmap",  # its files are removed with the data folder, also after SIGKILL
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %a ",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
}


class Postgres:
    """A server with its own data. Start, kill and restart keep the data and the port."""

    def __init__(
        self,
        version: str | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        database: str = "outbox",
        folder: Path | None = None,
    ) -> None:
        self.requested_version = version
        self.settings = {**DEFAULTS, **(settings or {})}
        self.database = database
        self.port = ports.reserve()
        self.password = secrets.token_hex(8)
        self._own_folder = folder is None
        self.folder = folder or new_folder("postgres")
        self.log = self.folder / "postgres.log"
        self.process: ServerProcess | None = None
        self._install: installs.PostgresInstall | None = None
        self._account = accounts.server_account()

    @property
    def url(self) -> str:
        return f"postgresql://postgres:{self.password}@{ports.HOST}:{int(self.port)}/{self.database}"

    @property
    def install(self) -> installs.PostgresInstall:
        """The programs, readable by the server's account."""
        if self._install is None:
            found = installs.postgres(self.requested_version)
            if self._account is not None and not accounts.reachable(found.bin):
                root = accounts.public_copy(found.root, found.parts)
                found = replace(found, root=root, bin=root / found.bin.relative_to(found.root))
            self._install = found
        return self._install

    @property
    def version(self) -> str:
        return self.install.version

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def pids(self) -> list[int]:
        """The server and all its children."""
        return self.process.tree() if self.process else []

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_running

    def _running(self) -> ServerProcess:
        if self.process is None:
            raise DevstackError("This PostgreSQL is not started. Call start().")
        return self.process

    def start(self) -> Postgres:
        if self.is_running:
            return self
        fresh = not (self.data / "PG_VERSION").exists()
        if fresh:
            self._initialise()
        self._launch()
        if fresh:
            with self.connect("postgres") as connection:
                connection.execute(f'CREATE DATABASE "{self.database}"'.encode())
        return self

    def stop(self) -> None:
        """Fast shutdown: sessions are ended, data is flushed."""
        if self.process is None:
            return
        if self.is_running:
            self.resume()
            self.process.signal(signal.SIGINT)
            if not self.process.wait(_STOP_TIMEOUT_S):
                self.process.kill()
        self.process = None

    def kill(self) -> None:
        """SIGKILL to the server and all its children at once, as when the machine loses power."""
        if self.process is not None:
            self.process.kill()
            self.process = None

    def restart(self) -> Postgres:
        self.stop()
        return self.start()

    def pause(self) -> None:
        """SIGSTOP to the server and its children: connections stay open, and the server does not answer."""
        process = self._running()
        # The server is paused first, so that it starts no further children while they are paused.
        process.pause()
        process.pause(tree=True)

    def resume(self) -> None:
        self._running().signal(signal.SIGCONT, tree=True)

    def discard(self, *, keep_log: bool = False) -> None:
        """Stop without saving the data, and remove it."""
        if self.process is not None and self.process.is_running:
            self.process.signal(signal.SIGCONT, tree=True)
            self.process.signal(signal.SIGQUIT)
            if not self.process.wait(_STOP_TIMEOUT_S):
                self.process.kill()
        self.process = None
        self.port.release()
        if self._own_folder:
            dispose(self.folder, [self.log] if keep_log else [])

    def connect(self, database: str | None = None) -> psycopg.Connection:
        """An autocommit connection as superuser."""
        try:
            import psycopg
        except ImportError as error:
            missing_extra("devstack", error)
        return psycopg.connect(self.url, dbname=database or self.database, autocommit=True, connect_timeout=10)

    def __enter__(self) -> Postgres:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard(keep_log=kind is not None)

    def _initialise(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir(mode=0o700)
        accounts.hand_over(self.data, self._account)
        secret = self.folder / "password"
        secret.touch(mode=0o600)
        secret.write_text(self.password)
        accounts.hand_over(secret, self._account)
        # --no-sync skips flushing the empty cluster: a lost one is made again. The server itself syncs as usual.
        arguments = ["-D", self.data, "-U", "postgres", "-A", "scram-sha-256", f"--pwfile={secret}", "-E", "UTF8"]
        self._run([str(self.install.bin / "initdb"), *map(str, arguments), "--locale=C", "--no-sync"])
        secret.unlink()
        lines = [
            f"{name} = '{_quoted(value)}'" for name, value in {**self.settings, "port": str(int(self.port))}.items()
        ]
        with open(self.data / "postgresql.conf", "a") as configuration:
            configuration.write("\n".join(["", *lines, ""]))

    def _run(self, argv: list[str]) -> None:
        """A program that ends by itself. The watchdog runs it, so that it too ends with its owner."""
        process = self._spawn(argv)
        if not process.wait(_START_TIMEOUT_S) or process.poll():
            self._fail(f"{argv[0]} ended with {process.poll()}")

    def _spawn(self, argv: list[str], quit_signal: int = signal.SIGKILL) -> ServerProcess:
        self.process = ServerProcess(
            argv, cwd=self.folder, log=self.log, env=_ENVIRONMENT, account=self._account, quit_signal=quit_signal
        )
        return self.process

    def _launch(self) -> None:
        (self.data / "postmaster.pid").unlink(missing_ok=True)  # of a killed server; kill() has waited for its children
        program = str(self.install.bin / "postgres")
        process = self._spawn([program, "-D", str(self.data)], signal.SIGQUIT)
        wait_until(lambda: self._is_ready() or not process.is_running, _START_TIMEOUT_S)
        if not self._is_ready():
            code = process.poll()
            self._fail(
                f"the process ended with {code}"
                if code is not None
                else f"it was not ready within {_START_TIMEOUT_S:g} s"
            )

    def _is_ready(self) -> bool:
        try:
            return (self.data / "postmaster.pid").read_text().splitlines()[7].strip() == "ready"
        except (OSError, IndexError):
            return False

    def _fail(self, reason: str) -> None:
        if self.process is not None:
            self.process.kill()
        self.process = None
        if self._own_folder:
            dispose(self.folder, [self.log])
        raise StartError(f"PostgreSQL {self.version} did not start on port {int(self.port)}: {reason}.", self.log)


def _quoted(value: str) -> str:
    return value.replace("'", "''")
