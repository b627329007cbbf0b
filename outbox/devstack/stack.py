"""PostgreSQL and Kafka together, with the environment variables that hold their addresses."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from outbox.devstack import origins
from outbox.devstack.kafka import Kafka
from outbox.devstack.postgres import Postgres
from outbox.downloads.progress import step

DATABASE = "DATABASE_URL"
SERVERS = "OUTBOX_BOOTSTRAP_SERVERS"


@dataclass(frozen=True)
class StackOptions:
    kafka: str | None = None  # a line such as "4.1"
    brokers: int = 1
    postgres: str | None = None  # a major such as "17"
    kafka_properties: Mapping[str, str] = field(default_factory=dict)
    kafka_java_options: tuple[str, ...] = ()
    postgres_settings: Mapping[str, str] = field(default_factory=dict)


class Stack:
    """The two servers. If the environment has the address of one already, that one is used and not started."""

    def __init__(self, options: StackOptions | None = None, *, environment: Mapping[str, str] = os.environ) -> None:
        chosen = self.options = options or StackOptions()
        self._given = {name: environment[name] for name in (DATABASE, SERVERS) if environment.get(name)}
        if len(self._given) < 2:
            origins.check_extra()
        self.postgres = (
            None if DATABASE in self._given else Postgres(chosen.postgres, settings=chosen.postgres_settings)
        )
        self.kafka = (
            None
            if SERVERS in self._given
            else Kafka(
                chosen.kafka,
                brokers=chosen.brokers,
                properties=chosen.kafka_properties,
                java_options=chosen.kafka_java_options,
            )
        )
        self.origin = self._origin()  # this also refuses unknown versions before a server starts

    @property
    def environment(self) -> dict[str, str]:
        """The variables for users of the stack, known before it is started."""
        own = dict(self._given)
        if self.postgres is not None:
            own[DATABASE] = self.postgres.url
        if self.kafka is not None:
            own[SERVERS] = self.kafka.bootstrap_servers
        return {**own, origins.VARIABLE: json.dumps(self.origin)}

    def _origin(self) -> origins.Origins:
        given = {"PostgreSQL": self.postgres is None, "Kafka": self.kafka is None}
        if all(given.values()):
            return origins.given_from_outside()
        found = origins.describe(self.options.kafka, self.options.postgres)
        outside = {name: part for name, part in origins.given_from_outside().items() if given[name]}
        return {**found, **outside}

    @property
    def pids(self) -> list[int]:
        return [pid for server in (self.postgres, self.kafka) if server is not None for pid in server.pids]

    @property
    def logs(self) -> list[Path]:
        """The files that exist."""
        named = [*([self.postgres.log] if self.postgres else []), *(self.kafka.logs if self.kafka else [])]
        return [log for log in named if log.exists()]

    def start_postgres(self) -> None:
        if self.postgres is not None and not self.postgres.is_running:
            version = self.postgres.version
            with step(f"starting PostgreSQL {version}"):
                self.postgres.start()

    def start_kafka(self) -> None:
        if self.kafka is not None and not self.kafka.is_running:
            version, count = self.kafka.version, len(self.kafka.brokers)
            with step(f"starting Kafka {version}" + (f" ({count} brokers)" if count > 1 else "")):
                self.kafka.start()

    def start(self) -> Stack:
        with ThreadPoolExecutor(2) as pool:
            started = [pool.submit(self.start_postgres), pool.submit(self.start_kafka)]
        for future in started:
            future.result()
        return self

    def discard(self, *, keep_logs: bool = False) -> None:
        if self.kafka is not None:
            self.kafka.discard(keep_log=keep_logs)
        if self.postgres is not None:
            self.postgres.discard(keep_log=keep_logs)

    def __enter__(self) -> Stack:
        try:
            return self.start()
        except BaseException as error:
            self.discard(keep_logs=isinstance(error, Exception))  # not after Ctrl-C
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard(keep_logs=kind is not None and not issubclass(kind, (KeyboardInterrupt, SystemExit)))
