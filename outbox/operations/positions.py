"""The positions of consumers: shown beside what Kafka has, and set by an operator."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from django.db import connections, transaction
from django.utils import timezone

from outbox.conf import Conf
from outbox.core.consumers import log
from outbox.core.consumers.values import EARLIEST, LATEST, Partition, Position
from outbox.edges.kafka.consumers.group import group_id
from outbox.edges.kafka.consumers.heads import Head, heads
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
    lag_s: float | None = None
    """The age of the first committed message that is not handled, by its time and the clock of this machine."""
    lag_s_unknown: str = ""
    """Why that age is unknown."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def positions_of(conf: Conf) -> Positions:
    return Positions(conf.table, session_timeout_s=conf.election.session_timeout_s)


def show(
    conf: Conf, declared: Mapping[str, str], consumer: str | None = None, *, database: str | None = None
) -> list[ShownPosition]:
    """Every position, or those of one consumer. Kafka's side is left out where it does not answer. `declared` has the
    alias of each consumer that apps declare; `database` takes the place of all of them."""
    positions = positions_of(conf)
    everywhere = {conf.database, *declared.values()}
    aliases = sorted(everywhere if consumer is None or consumer not in declared else {declared[consumer]})
    if database is not None:
        aliases = [database]
    names = {alias: set(positions.topics(connections[alias])) for alias in aliases}
    if consumer is not None:
        require_known(consumer, declared, set().union(*names.values()))
    shown = []
    for alias, found in names.items():
        for name in sorted(found if consumer is None else found & {consumer}):
            shown += _shown_of(conf, name, positions.everything(connections[alias], name))
    return sorted(shown, key=lambda one: (one.consumer, one.topic, one.partition))


def require_known(consumer: str, declared: Collection[str], stored: Collection[str]) -> None:
    if consumer not in declared and consumer not in stored:
        known = ", ".join(sorted({*declared, *stored})) or "none"
        raise PositionRefused(f"No consumer is called {consumer!r}. Known consumers: {known}.")


def _shown_of(conf: Conf, consumer: str, found: Mapping[Partition, Position]) -> list[ShownPosition]:
    topics = Topics(conf.kafka.client_properties, group_id(conf.name, consumer))
    ids = _ids(topics, {partition.topic for partition in found})
    shown = [_shown(consumer, partition, found[partition], topics, ids) for partition in sorted(found)]
    behind = {Partition(one.topic, one.partition): one.next for one in shown if one.lag}
    ages = heads(conf.kafka.client_properties, group_id(conf.name, consumer), behind)
    return [_aged(one, ages.get(Partition(one.topic, one.partition)), time.time()) for one in shown]


def _aged(shown: ShownPosition, head: Head | None, now: float) -> ShownPosition:
    if shown.is_other_topic:
        return replace(shown, lag_s_unknown="the topic was created again")
    if shown.lag is None:
        return replace(shown, lag_s_unknown="Kafka does not say where the topic ends")
    if head is not None and head.reason:
        return replace(shown, lag_s_unknown=head.reason)
    if head is None or head.time_ms is None:
        return replace(shown, lag_s=0.0)
    return replace(shown, lag_s=max(0.0, now - head.time_ms / 1000))


def _ids(topics: Topics, names: set[str]) -> Mapping[str, str] | None:
    try:
        return topics.ids(sorted(names))
    except NotAvailable:
        return None


def _bounds(topics: Topics, partition: Partition) -> tuple[int, int] | tuple[None, None]:
    """A topic that was created again may have fewer partitions."""
    try:
        return topics.bounds(partition)
    except NotAvailable:
        return None, None


def _shown(
    consumer: str, partition: Partition, position: Position, topics: Topics, ids: Mapping[str, str] | None
) -> ShownPosition:
    topic_id = (ids or {}).get(partition.topic)
    first, end = _bounds(topics, partition) if topic_id is not None else (None, None)
    is_other = bool(log.other_topic(partition, position, topic_id))
    lag = None if end is None or is_other else max(0, end - position.next)
    return ShownPosition(consumer, *partition, position.next, first, end, lag, is_other)


To = str | int | datetime


def to_of(text: str, now: datetime, option: str = "--to", words: Sequence[str] = (EARLIEST, LATEST)) -> To:
    """An offset, one of these words or a time that an operator has written. A time without an offset is one of the
    project's time zone."""
    if text in words:
        return text
    if text.isdecimal():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise PositionRefused(
            f"{option} {text!r} is not {', '.join(['an offset', *words])} or an ISO time such as "
            "2026-03-01T12:00+01:00."
        ) from None
    at = _aware(text, at, option) if at.tzinfo is None else at
    if at > now:
        remedy = (
            "Set --to latest to leave out the messages that are there." if LATEST in words else "Set a time before."
        )
        raise PositionRefused(
            f"{option} {text!r} is in the future: it is {now.astimezone(at.tzinfo).isoformat(' ', 'seconds')} now. "
            f"{remedy}"
        )
    return at


def _aware(text: str, at: datetime, option: str) -> datetime:
    zone = timezone.get_default_timezone()
    one, other = at.replace(tzinfo=zone), at.replace(tzinfo=zone, fold=1)
    if one.utcoffset() == other.utcoffset():
        return one
    is_skipped = one.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != at
    said = "does not exist, because the clocks skip it," if is_skipped else "exists twice, because the clocks go back,"
    raise PositionRefused(
        f"{option} {text!r} {said} in the time zone {zone}. Write the time with its offset, such as "
        f"{one.isoformat()} or {other.isoformat()}."
    )


def set_positions(
    conf: Conf,
    declared: Mapping[str, str],
    consumer: str,
    topic: str,
    to: To,
    *,
    partition: int | None = None,
    actor: str,
    reason: str = "",
    dry_run: bool = False,
    database: str | None = None,
) -> dict[Partition, tuple[int | None, int]]:
    """Each partition's position before and after. `to` is an offset, `earliest`, `latest`, or a time: the position is
    then the first message that is not older. Refused while a process of the consumer runs, and for an offset that the
    topic does not have."""
    alias = database or declared.get(consumer, conf.database)
    positions, connection = positions_of(conf), connections[alias]
    require_known(consumer, declared, positions.topics(connection))
    topics = Topics(conf.kafka.client_properties, group_id(conf.name, consumer))
    if members := topics.members():
        raise PositionRefused(
            f"{members} processes of the consumer {consumer!r} are running, or ended less than SESSION_TIMEOUT ago. "
            "Stop them, and run the command again."
        )
    wanted = _wanted(topics, topic, to, partition)
    topic_id = topics.ids([topic])[topic]
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


def _wanted(topics: Topics, topic: str, to: To, partition: int | None) -> dict[Partition, int]:
    wanted = {}
    for found in partitions_of(topics, topic, partition):
        first, end = topics.bounds(found)
        next = offset_of(topics, found, to, first, end)
        if not first <= next <= end:
            raise PositionRefused(f"{log.named(found)} holds the offsets {first} to {end}, and not {next}.")
        wanted[found] = next
    return wanted


def partitions_of(topics: Topics, topic: str, partition: int | None) -> list[Partition]:
    """This one, or all of the topic."""
    count = topics.partitions(topic)
    if not count:
        raise PositionRefused(f"The topic {topic!r} does not exist, or the user may not see it.")
    if partition is not None and not 0 <= partition < count:
        raise PositionRefused(f"The topic {topic!r} has the partitions 0 to {count - 1}, and not {partition}.")
    return [Partition(topic, number) for number in (range(count) if partition is None else [partition])]


def offset_of(topics: Topics, partition: Partition, to: To, first: int, end: int) -> int:
    if isinstance(to, datetime):
        return topics.offset_at(partition, int(to.timestamp() * 1000))
    return to if isinstance(to, int) else {EARLIEST: first, LATEST: end}[to]
