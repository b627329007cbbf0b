"""The positions of consumers: shown beside what Kafka has, and set by an operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from django.db import connections, transaction

from outbox.conf import Conf
from outbox.core.consumers.values import EARLIEST, LATEST, Partition, Position
from outbox.edges.kafka.consumers.group import group_id
from outbox.edges.kafka.consumers.topics import Topics
from outbox.edges.postgres.consumers.positions import Positions
from outbox.exceptions import NotAvailable, OutboxError
from outbox.operations.outcomes import write_audit_log


class PositionRefused(OutboxError):
    """The position stays as it is, for the reason in the text."""


@dataclass(frozen=True, slots=True)
class ShownPosition:
    consumer: str
    topic: str
    partition: int
    next: int
    first: int | None
    """Of the topic; None: Kafka does not say."""
    end: int | None
    lag: int | None
    """Offsets up to the last stable one. Marks of transactions are among them."""
    is_other_topic: bool
    """The topic was deleted and created again."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def positions_of(conf: Conf) -> Positions:
    return Positions(conf.table, session_timeout_s=conf.election.session_timeout_s)


def show(conf: Conf, alias: str, consumer: str | None = None) -> list[ShownPosition]:
    """Every position, or those of one consumer. Kafka's side is left out where it does not answer."""
    connection, positions = connections[alias], positions_of(conf)
    shown = []
    for name in sorted(positions.topics(connection)):
        if consumer in (None, name):
            topics = Topics(conf.kafka.client_properties, group_id(conf.name, name))
            found = positions.everything(connection, name)
            ids = _ids(topics, {partition.topic for partition in found})
            shown += [_shown(name, partition, found[partition], topics, ids) for partition in sorted(found)]
    return shown


def _ids(topics: Topics, names: set[str]) -> Mapping[str, str] | None:
    try:
        return topics.ids(sorted(names))
    except NotAvailable:
        return None


def _shown(
    consumer: str, partition: Partition, position: Position, topics: Topics, ids: Mapping[str, str] | None
) -> ShownPosition:
    topic_id = (ids or {}).get(partition.topic)
    first, end = topics.bounds(partition) if topic_id is not None else (None, None)
    is_other = bool(topic_id and position.topic_id and topic_id != position.topic_id)
    lag = None if end is None or is_other else max(0, end - position.next)
    return ShownPosition(consumer, *partition, position.next, first, end, lag, is_other)


def set_positions(
    conf: Conf,
    alias: str,
    consumer: str,
    topic: str,
    to: str | int,
    *,
    partition: int | None = None,
    actor: str,
    reason: str = "",
    dry_run: bool = False,
) -> dict[Partition, tuple[int | None, int]]:
    """Each partition's position before and after. `to` is an offset, `earliest` or `latest`. Refused while a process of
    the consumer runs, and for an offset that the topic does not have."""
    topics = Topics(conf.kafka.client_properties, group_id(conf.name, consumer))
    if members := topics.members():
        raise PositionRefused(
            f"{members} processes of the consumer {consumer!r} are running, or ended less than SESSION_TIMEOUT ago. "
            "Stop them, and run the command again."
        )
    wanted = _wanted(topics, topic, to, partition)
    topic_id = topics.ids([topic])[topic]
    positions, connection = positions_of(conf), connections[alias]
    with transaction.atomic(using=alias):
        before, _ = positions.lock(connection, consumer, list(wanted))
        changed = {one: (before[one].next if one in before else None, next) for one, next in wanted.items()}
        if dry_run:
            return changed
        positions.replace(connection, consumer, {one: Position(next, topic_id) for one, next in wanted.items()})
        numbers = {one.number: [old, new] for one, (old, new) in changed.items()}
        details = {"consumer": consumer, "topic": topic, "positions": numbers}
        write_audit_log(alias, actor, "position", reason, details)
    return changed


def _wanted(topics: Topics, topic: str, to: str | int, partition: int | None) -> dict[Partition, int]:
    count = topics.partitions(topic)
    if not count:
        raise PositionRefused(f"The topic {topic!r} does not exist, or the user may not see it.")
    if partition is not None and not 0 <= partition < count:
        raise PositionRefused(f"The topic {topic!r} has the partitions 0 to {count - 1}, and not {partition}.")
    wanted = {}
    for number in range(count) if partition is None else [partition]:
        first, end = topics.bounds(found := Partition(topic, number))
        next = {EARLIEST: first, LATEST: end}.get(str(to), to)
        if not isinstance(next, int) or not first <= next <= end:
            raise PositionRefused(f"{topic}[{number}] holds the offsets {first} to {end}, and not {next}.")
        wanted[found] = next
    return wanted
