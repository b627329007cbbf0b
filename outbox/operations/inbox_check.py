"""The part of an examination that is about consumers: their table, their topics and their groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import psycopg

from outbox.conf import Conf
from outbox.edges.kafka.consumers.group import group_id
from outbox.edges.kafka.consumers.topics import Topics
from outbox.edges.postgres.preflight import privileges
from outbox.exceptions import NotAvailable, OutboxError
from outbox.operations import stats
from outbox.operations.findings import Finding, error, ok


class Examined(NamedTuple):
    name: str
    alias: str
    topics: Sequence[str]


def examine(conf: Conf, consumers: Sequence[Examined]) -> Iterator[Finding]:
    if not consumers:
        yield error("consumers", "no app has one", "Declare one with outbox.consumer in the module inbox of an app.")
    for alias in sorted({consumer.alias for consumer in consumers}):
        yield from _tables(conf, alias)
    for consumer in consumers:
        yield from _kafka(conf, consumer)


def _tables(conf: Conf, alias: str) -> Iterator[Finding]:
    try:
        with closing(stats.connect(conf, alias)) as connection:
            missing = privileges.missing_of_consumers(connection, conf.table)
    except (OutboxError, psycopg.Error) as failure:
        text = " ".join(str(failure).split())
        yield error("consumers", f"database {alias!r}: {text}", "Start PostgreSQL, or correct DATABASES.")
        return
    for name, rights in missing.items():
        if rights:
            remedy = "Grant what manage.py outbox_roles --consumer prints."
            yield error("consumers", f"the user may not: {', '.join(rights)} on {name} in {alias!r}", remedy)
        else:
            remedy = f"python manage.py migrate outbox --database {alias}"
            yield error("consumers", f"the table {name} is missing in {alias!r}", remedy)
    if not missing:
        yield ok("consumers", f"the user may keep positions in {alias!r}")


def _kafka(conf: Conf, consumer: Examined) -> Iterator[Finding]:
    subject, group = f"consumer {consumer.name!r}", group_id(conf.name, consumer.name)
    if not conf.kafka.bootstrap_servers:
        return  # said before
    topics = Topics(conf.kafka.client_properties, group)
    try:
        denied = topics.denied(consumer.topics)
        missing = [topic for topic in consumer.topics if topic not in denied]
        for topic in missing:
            yield error(subject, f"the topic {topic!r} does not exist", "Create it, or allow the user DESCRIBE.")
        for topic, rights in denied.items():
            if rights:
                yield error(
                    subject, f"the user may not {rights} the topic {topic!r}", f"Allow the user {rights} on it."
                )
        members = topics.members()
    except NotAvailable as failure:
        yield error(subject, str(failure), f"Start Kafka, or allow the user READ on the group {group!r}.")
        return
    if not missing and not any(denied.values()):
        yield ok(subject, f"{len(consumer.topics)} topics, {members} members in the group {group!r}")
