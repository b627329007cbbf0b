"""The PostgreSQL and the Kafka of the measurements: databases, topics, rows, and the cost of the servers.

The head of every table shows PostgreSQL's settings for durability. They are those of the devstack, which turns nothing
off.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

ROOT = Path(__file__).resolve().parents[1]
MANAGE = [sys.executable, str(ROOT / "example_project" / "manage.py")]
PARTITIONS = 8
SHOWN = ("fsync", "full_page_writes", "synchronous_commit", "autovacuum", "wal_level", "shared_buffers")
_TICKS = os.sysconf("SC_CLK_TCK")


def required() -> tuple[str, str]:
    if not {"DATABASE_URL", "OUTBOX_BOOTSTRAP_SERVERS"} <= os.environ.keys():
        sys.exit(
            "The benchmarks need two servers. Run: make bench, or python -m outbox.devstack run -- python -m benchmarks"
        )
    return os.environ["DATABASE_URL"], os.environ["OUTBOX_BOOTSTRAP_SERVERS"]


@dataclass(frozen=True)
class Fill:
    """The records for the table."""

    records: int = 400_000
    keys: int = 1_000
    value_bytes: int = 100
    headers: int = 0


class Database:
    """A database of its own, with the outbox' tables."""

    def __init__(self, server: str, servers: str) -> None:
        self.name = f"outbox_bench_{os.getpid()}_{uuid.uuid4().hex[:6]}"
        self._server = server
        self.url = urlunsplit(urlsplit(server)._replace(path=f"/{self.name}"))
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")},
            "DATABASE_URL": self.url,
            "OUTBOX_BOOTSTRAP_SERVERS": servers,
        }
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {self.name}".encode())
        subprocess.run([*MANAGE, "migrate", "outbox", "--verbosity", "0"], env=self.environment, check=True)
        self.connection = self.connect()

    def connect(self) -> psycopg.Connection[Any]:
        # So that queries of this program do not count as sequential scans of the harvester.
        return psycopg.connect(self.url, autocommit=True, options="-c enable_seqscan=off")

    def close(self) -> None:
        self.connection.close()
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {self.name} WITH (FORCE)".encode())

    def fill(self, topic: str, fill: Fill) -> None:
        """Rows as they are some time after their transactions: vacuumed, and with no checkpoint outstanding."""
        self.empty()
        self.insert(topic, fill)
        self.connection.execute("VACUUM ANALYZE outbox")
        self.connection.execute("CHECKPOINT")

    def insert(self, topic: str, fill: Fill) -> None:
        self.connection.execute(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values) "
            "SELECT %s, 'key-' || n %% %s, rpad(n::text, %s, 'x'), "
            "ARRAY(SELECT 'header-' || h FROM generate_series(1, %s) h), "
            "ARRAY(SELECT 'value of the header ' || h FROM generate_series(1, %s) h) FROM generate_series(1, %s) n",
            [topic, fill.keys, fill.value_bytes, fill.headers, fill.headers, fill.records],
        )

    def empty(self) -> None:
        self.connection.execute("TRUNCATE outbox, outbox_state, outbox_purged, outbox_lane")

    def one(self, query: str, *parameters: Any) -> Any:
        row = self.connection.execute(query.encode(), parameters, prepare=True).fetchone()
        return row[0] if row else None


@contextlib.contextmanager
def database(server: str, servers: str) -> Iterator[Database]:
    found = Database(server, servers)
    try:
        yield found
    finally:
        found.close()


def new_topic(servers: str, partitions: int = PARTITIONS, **config: str) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)
    return topic


def describe(server: str) -> list[str]:
    """The head of the table: machine, versions, and what is switched on."""
    import confluent_kafka

    with psycopg.connect(server, autocommit=True) as connection:
        shown = {name: connection.execute(f"SHOW {name}".encode()).fetchone() for name in ("server_version", *SHOWN)}
    settings = " ".join(f"{name}={found[0]}" for name, found in shown.items() if found)
    client = f"psycopg {version('psycopg')}, librdkafka {confluent_kafka.libversion()[0]}"
    harvester = "harvesters are the installed command: python manage.py harvest"
    return [
        f"{platform.machine()}, {os.cpu_count()} cores for all of it; Python {platform.python_version()}, {client}",
        f"PostgreSQL {settings}",
        f"Kafka {_kafka_version()}; producers acks=all, idempotent, lz4; {harvester}",
    ]


def _kafka_version() -> str:
    import json

    try:
        return str(json.loads(os.environ["OUTBOX_DEVSTACK_ORIGIN"])["Kafka"]["version"])
    except (KeyError, ValueError):
        return "given from outside"


# ---- CPU


def cpu_s(pid: int | None, *, children: bool = False) -> float:
    """Seconds of CPU that a process has used; with `children` also those of its ended and living children."""
    if pid is None:
        return float("nan")
    found = _stat(pid)
    if found is None:
        return float("nan")
    total = (found[11] + found[12] + (found[13] + found[14] if children else 0)) / _TICKS
    if children:
        for name in os.listdir("/proc"):
            other = _stat(int(name)) if name.isdigit() else None
            if other is not None and other[1] == pid:
                total += (other[11] + other[12]) / _TICKS
    return total


def tree_cpu_s(pid: int) -> float:
    """Seconds of CPU of a process and all its descendants."""
    found = {int(name): stat for name in os.listdir("/proc") if name.isdigit() and (stat := _stat(int(name)))}
    total, wanted = 0, [pid]
    while wanted:
        parent = wanted.pop()
        if parent in found:
            total += sum(found[parent][11:15])
        wanted += [child for child, stat in found.items() if stat[1] == parent]
    return total / _TICKS


def _stat(pid: int) -> list[int] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return [int(part) if part.lstrip("-").isdigit() else 0 for part in text.rpartition(")")[2].split()]


def listener(port: int) -> int | None:
    """The process that listens on a port of this machine, if this user may see it."""
    inodes = {
        parts[9]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        if Path(table).exists()
        for parts in (line.split() for line in Path(table).read_text().splitlines()[1:])
        if parts[3] == "0A" and int(parts[1].rpartition(":")[2], 16) == port
    }
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for handle in os.scandir(f"/proc/{name}/fd"):
                if os.readlink(handle.path).removeprefix("socket:[").removesuffix("]") in inodes:
                    found.append(int(name))
                    break
    return min(found, default=None)


class Costs:
    """CPU seconds of both servers and the WAL written, since this object was made."""

    def __init__(self, database: Database, server: str, servers: str) -> None:
        self._database = database
        self._postgres = listener(urlsplit(server).port or 5432)
        self._kafka = listener(int(servers.split(",")[0].rpartition(":")[2]))
        self._begun = self._now()

    def _now(self) -> tuple[float, float, float]:
        wal = float(self._database.one("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))
        return cpu_s(self._postgres, children=True), cpu_s(self._kafka), wal

    def taken(self) -> tuple[float, float, float]:
        """PostgreSQL's and Kafka's CPU seconds, bytes of WAL."""
        now = self._now()
        return now[0] - self._begun[0], now[1] - self._begun[1], now[2] - self._begun[2]
