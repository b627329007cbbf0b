"""The servers of this project's settings, as the threads of consumers use them."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from uuid import uuid4

from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from outbox.conf import Conf
from outbox.consumers.daemon import Run
from outbox.consumers.handle import Handling
from outbox.consumers.registry import Consumer, unfit
from outbox.core.consumers.values import ConsumerOptions
from outbox.edges.kafka.consumers.group import Group, group_id, properties_of
from outbox.edges.kafka.consumers.topics import Topics
from outbox.edges.postgres.consumers.held import HeldMessages
from outbox.edges.postgres.consumers.owners import Owners
from outbox.edges.postgres.consumers.positions import Positions
from outbox.edges.postgres.consumers.seen import SeenIds
from outbox.edges.postgres.consumers.shown import PartitionRows
from outbox.edges.postgres.consumers.transactions import Transaction
from outbox.exceptions import NotAvailable, OutboxError

CALL_MARGIN_S = 10.0


class UnknownPositions(OutboxError):
    """Positions of a topic belong to a consumer that no app declares."""


@cache
def _life(pid: int) -> str:
    """Names this process, and no other one that has the same number on a host of the same name."""
    return f"{socket.gethostname()}_{pid}_{uuid4().hex[:12]}"


class ServersOf:
    """A `Connect` of one consumer."""

    def __init__(self, conf: Conf, consumer: Consumer) -> None:
        self._conf, self._consumer = conf, consumer
        self._group = group_id(conf.name, consumer.name)

    @property
    def alias(self) -> str:
        return self._consumer.using or self._conf.database

    def require_postgres(self) -> BaseDatabaseWrapper:
        """The connection of the alias, which DATABASES must have."""
        if reason := unfit(self.alias):
            raise OutboxError(
                f"The consumer {self._consumer.name!r} uses the database {self.alias!r}, which does not fit: {reason}. "
                "Set using= to the alias of a PostgreSQL database that has the tables of outbox."
            )
        return connections[self.alias]

    def positions(self) -> Positions:
        return Positions(self._conf.table, session_timeout_s=self._conf.election.session_timeout_s)

    def held(self) -> HeldMessages:
        return HeldMessages(self._conf.table)

    def seen(self) -> SeenIds:
        return SeenIds(self._conf.table, window_s=self._conf.consumers.dedupe_window_s)

    def owners(self) -> Owners:
        return Owners(
            self._conf.table,
            owner=_life(os.getpid()),
            session_timeout_s=self._conf.election.session_timeout_s,
        )

    def transaction(self) -> Transaction:
        return Transaction(
            self.alias,
            consumer=self._consumer.name,
            durable=self._consumer.durable,
            session_timeout_s=self._conf.election.session_timeout_s,
        )

    def rows(self) -> PartitionRows:
        pid = os.getpid()
        return PartitionRows(self.alias, self._conf.table, owner=f"{socket.gethostname()}_{pid}", life=_life(pid))

    def topics(self) -> Topics:
        return Topics(self._conf.kafka.client_properties, self._group)

    def group(self) -> Group:
        properties = properties_of(
            self._conf.kafka.client_properties, self._group, session_timeout_s=self._conf.election.session_timeout_s
        )
        return Group(properties, self._consumer.names)


def runs_of(conf: Conf, consumers: Sequence[Consumer]) -> list[Run]:
    """Those of one database are shown over one connection."""
    rows: dict[str, PartitionRows] = {}
    servers = [ServersOf(conf, consumer) for consumer in consumers]
    return [
        run_of(conf, consumer, rows.setdefault(one.alias, one.rows()))
        for consumer, one in zip(consumers, servers, strict=True)
    ]


def timed(conf: Conf, options: ConsumerOptions) -> ConsumerOptions:
    """With the times of the settings."""
    return replace(
        options,
        transaction_max_s=conf.consumers.consumer_transaction_max_s,
        # A lock is waited for as long as a session lasts.
        call_timeout_s=conf.election.session_timeout_s + CALL_MARGIN_S,
    )


def run_of(conf: Conf, consumer: Consumer, rows: PartitionRows | None = None) -> Run:
    servers = ServersOf(conf, consumer)
    matches = consumer.matches if consumer.patterns else None
    handling = Handling(consumer, servers.alias, id_header=conf.stash.message_id_header)
    return Run(
        timed(conf, consumer.options),
        handling,
        servers,
        rows or servers.rows(),
        consumer.names,
        matches,
        handling.identify if consumer.dedupe else None,
    )


class Preflight:
    """Raises what would keep consumers from working: `NotAvailable` while a server does not answer."""

    def __init__(self, conf: Conf, consumers: Sequence[Consumer], registered: Sequence[str], *, topics: bool) -> None:
        """`registered` are the names of all consumers that apps declare. `topics`: those that do not exist are not
        waited for."""
        self._conf, self._consumers, self._registered = conf, consumers, set(registered)
        self._asks_for_topics = topics

    def __call__(self) -> None:
        for consumer in self._consumers:
            self._look_at_positions(consumer)
            found = ServersOf(self._conf, consumer).topics().ids(consumer.names)
            missing = [name for name in consumer.names if name not in found]
            if missing and self._asks_for_topics:
                raise OutboxError(
                    f"The consumer {consumer.name!r} has topics that do not exist: {', '.join(missing)}. Create them, "
                    "or allow the user DESCRIBE and READ."
                )

    def _look_at_positions(self, consumer: Consumer) -> None:
        servers = ServersOf(self._conf, consumer)
        connection = servers.require_postgres()
        try:
            with closing(connection):
                found = servers.positions().topics(connection)
        except DatabaseError as error:
            if getattr(error.__cause__, "sqlstate", None) == "42P01":
                raise OutboxError(
                    f"The table {self._conf.table}_position is missing in the database {servers.alias!r}. Run: "
                    f"python manage.py migrate outbox --database {servers.alias}"
                ) from error
            raise NotAvailable(f"The database {servers.alias!r} cannot be asked: {str(error).strip()}") from error
        self._compare(consumer, found)

    def _compare(self, consumer: Consumer, found: dict[str, set[str]]) -> None:
        """A function that was renamed would begin once more from the start."""
        for other, topics in sorted(found.items()):
            shared = [topic for topic in sorted(topics) if consumer.matches(topic)]
            if shared and other not in self._registered and not found.get(consumer.name, set()).intersection(shared):
                raise UnknownPositions(
                    f"The consumer {consumer.name!r} has no position in the topic {shared[0]!r}, and {other!r}, which "
                    "no app declares, has one. Was the function renamed? Then declare it with "
                    f"name={other!r}, and it continues where it was. If both are meant, declare {other!r} too: "
                    f"{consumer.name!r} then begins as start= says."
                )
