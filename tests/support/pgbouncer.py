"""A real PgBouncer in front of a PostgreSQL, where the machine has one."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote, urlsplit, urlunsplit

from outbox.devstack import accounts, ports
from outbox.devstack.processes import ServerProcess, wait_until

FILE = """
[databases]
* = host={host} port={port} user={user} password={password}
[pgbouncer]
listen_addr = {listen}
listen_port = {own}
unix_socket_dir =
auth_type = any
{settings}
"""


def installed() -> str | None:
    return shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")


class PgBouncer:
    """Clients reach every database of the server at `url`; `settings` are lines of its configuration."""

    def __init__(self, program: str, server: str, folder: Path, **settings: str) -> None:
        self._program, self._server, self._folder = program, server, folder
        self._settings = settings
        self._port = ports.reserve()
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        parts = urlsplit(self._server)
        user = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{user}@{ports.HOST}:{int(self._port)}"))

    def __enter__(self) -> PgBouncer:
        parts = urlsplit(self._server)
        settings = dict(self._settings)
        if os.geteuid() == 0:  # whom it does not serve
            settings["user"] = accounts.ACCOUNT
        file = self._folder / "pgbouncer.ini"
        file.write_text(
            FILE.format(
                host=parts.hostname,
                port=parts.port,
                user=parts.username,
                password=unquote(parts.password or ""),
                listen=ports.HOST,
                own=int(self._port),
                settings="\n".join(f"{name} = {value}" for name, value in settings.items()),
            )
        )
        log = self._folder / "pgbouncer.log"
        self._process = ServerProcess([self._program, str(file)], cwd=self._folder, log=log, env=dict(os.environ))
        process = self._process
        wait_until(lambda: self._answers() or not process.is_running, 20)
        assert process.is_running, log.read_text()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
        self._port.release()

    def _answers(self) -> bool:
        try:
            socket.create_connection((ports.HOST, int(self._port)), 1).close()
        except OSError:
            return False
        return True
