"""The two services: a database each, and the processes of each, which can be killed and started again."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

MANAGE = Path(__file__).resolve().parents[1] / "manage.py"
COMMANDS = {"harvest": "while it had messages to send", "consume": "in the middle of a transaction"}
"""And when a process of it is killed."""
SENDS = "SELECT 1 FROM outbox_lane WHERE owner_name LIKE %s AND EXISTS (SELECT FROM outbox) LIMIT 1"
CONSUMES = "SELECT 1 FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND client_port = ANY(%s) LIMIT 1"


@dataclass(frozen=True)
class Service:
    name: str
    url: str
    environment: Mapping[str, str]
    connection: psycopg.Connection
    """For questions that are plain SQL."""

    def start(self, *arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
        """A command of manage.py."""
        return subprocess.Popen(
            [sys.executable, str(MANAGE), *arguments], env={**os.environ, **self.environment}, **options
        )

    def rows(self, table: str) -> int:
        [(found,)] = self.connection.execute(f"SELECT count(*) FROM {table}").fetchall()
        return int(found)


@contextlib.contextmanager
def database(server_url: str, name: str) -> Iterator[str]:
    """The URL of a new database, which is dropped at the end."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        try:
            yield urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


class Process:
    """One harvester or consumer of a service. It writes to one log, also after it was started again."""

    def __init__(self, service: Service, command: str, number: int, folder: Path) -> None:
        self.name = f"{service.name} {command} {number}"
        self.number = number
        self.log = folder / f"{self.name.replace(' ', '-')}.log"
        self.is_started = False
        self.child: subprocess.Popen[bytes]
        self.busy_when = COMMANDS[command]
        self._service, self._command = service, command

    def start(self) -> None:
        with self.log.open("ab") as log:
            # In a group of its own: Ctrl-C reaches the demo alone, which then stops its processes.
            self.child = self._service.start(self._command, stdout=log, stderr=log, process_group=0)
        self.is_started = True

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()
        self.is_started = False

    def is_busy(self) -> bool:
        """A harvester: it owns a lane, and messages wait. A consumer: PostgreSQL has a transaction of this process that
        has written something and is not committed yet."""
        connection, pid = self._service.connection, self.child.pid
        if self._command == "harvest":
            found = connection.execute(SENDS, [f"%\\_{pid}\\_%"])
        else:
            found = connection.execute(CONSUMES, [list(_ports(pid))])
        return found.fetchone() is not None


def _ports(pid: int) -> Iterator[int]:
    """The local ports of the TCP connections of a process, as Linux lists them."""
    try:
        files = {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
    except FileNotFoundError:  # the process has ended, or has closed one of them
        return
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if f"socket:[{fields[9]}]" in files:
                yield int(fields[1].rpartition(":")[2], 16)
