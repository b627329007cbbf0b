"""Replays of consumers: begun, listed and ended. The threads of consumers run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from django.db import connections, transaction

from outbox.conf import Conf
from outbox.core.consumers.replay import KnownPartition, NoReplay, Replay, span
from outbox.core.consumers.values import EARLIEST, Partition, Position
from outbox.edges.kafka.consumers.group import group_id
from outbox.edges.kafka.consumers.topics import Topics
from outbox.edges.postgres.consumers.replays import Replays
from outbox.edges.postgres.consumers.seen import SeenIds
from outbox.exceptions import OutboxError
from outbox.operations.outcomes import write_audit_log
from outbox.operations.positions import PositionRefused, To, offset_of, partitions_of, positions_of, to_of


class ReplayRefused(OutboxError):
    """It is not begun, for the reason in the text."""


@dataclass(frozen=True, slots=True)
class Target:
    """A consumer that an app declares."""

    name: str
    alias: str
    matches: Callable[[str], bool]
    """Whether it handles messages of the topic of this name."""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """The arguments of the command, as they were written."""

    topic: str
    first: str
    end: str | None = None
    """None: the position."""
    partition: int | None = None
    stashes: bool = False

    @property
    def text(self) -> str:
        """The same for the same arguments."""
        parts = [f"--from {self.first}"]
        parts += [f"--to {self.end}"] if self.end is not None else []
        parts += [f"--partition {self.partition}"] if self.partition is not None else []
        return " ".join([*parts, "--stash"] if self.stashes else parts)


@dataclass(frozen=True, slots=True)
class OpenReplay:
    replay: Replay
    left: Mapping[Partition, int]
    """Offsets to be handled yet. Marks of transactions are among them."""


def begun(
    conf: Conf, target: Target, request: ReplayRequest, *, actor: str, reason: str = "", is_again: bool = False,
    dry_run: bool = False,
) -> tuple[Replay, bool]:  # fmt: skip
    """The replay of this request, and whether it is a new one. One that has not ended is continued. Refused if another
    one of the topic has not ended; and, unless `is_again`, if one of the same request has."""
    if not target.matches(request.topic):
        raise ReplayRefused(
            f"The consumer {target.name!r} does not handle the topic {request.topic!r}. Name one of its topics."
        )
    replays, connection = Replays(conf.table), connections[target.alias]
    if found := _continued(replays.open(connection, target.name, request.topic), request):
        return found, False
    replay = _asked(conf, target, request)
    last = replays.ended(connection, target.name, request.topic, replay.topic_id, request.text)
    if last is not None and not is_again:
        raise ReplayRefused(
            f"Replay {last.id} with the same arguments ended at {last.ended_at.isoformat(' ', 'seconds')}. Add --again "
            "to handle these messages once more."
        )
    if dry_run:
        return replay, True
    positions = positions_of(conf)
    with transaction.atomic(using=target.alias):
        id_ = replays.begin(connection, replay)
        if id_ is None:
            raise ReplayRefused("Another process has begun a replay of this topic. Run the command again.")
        replay = replace(replay, id=id_)
        positions.replace(connection, replay.name, replay.begins)
        write_audit_log(target.alias, actor, "replay", reason, _details(replay))
    return replay, True


def _continued(open_: list[Replay], request: ReplayRequest) -> Replay | None:
    for replay in open_:
        if replay.request != request.text:
            raise ReplayRefused(
                f"Replay {replay.id} of {replay.consumer} in {replay.topic} has not ended. To continue it, run: python "
                f"manage.py outbox_replay {replay.consumer} --topic {replay.topic} {replay.request}. To end it, run: "
                f"python manage.py outbox_replay {replay.consumer} --topic {replay.topic} --cancel"
            )
        return replay
    return None


def _asked(conf: Conf, target: Target, request: ReplayRequest) -> Replay:
    now = datetime.now(UTC)
    first = to_of(request.first, now, "--from", [EARLIEST])
    end = None if request.end is None else to_of(request.end, now, "--to", [])
    topics = Topics(conf.kafka.client_properties, group_id(conf.name, target.name))
    asked = partitions_of(topics, request.topic, request.partition)
    topic_id = topics.ids([request.topic])[request.topic]
    found = positions_of(conf).load(connections[target.alias], target.name, asked)
    spans = {one: _span(topics, one, found.get(one), topic_id, first, end) for one in asked}
    spans = {partition: span for partition, span in spans.items() if span}
    if not spans:
        raise ReplayRefused("The range has no offset. Set --from to a lower offset or an earlier time.")
    return Replay(0, target.name, request.topic, topic_id, spans, request.stashes, request.text)


def _span(
    topics: Topics, partition: Partition, position: Position | None, topic_id: str, first: To, end: To | None
) -> range:
    bounds = topics.bounds(partition)
    start = offset_of(topics, partition, first, *bounds)
    stop = None if end is None else offset_of(topics, partition, end, *bounds)
    if stop is not None and isinstance(end, datetime) and position is not None:
        stop = min(stop, position.next)  # later messages of that time are not handled yet
    try:
        return span(partition, KnownPartition(position, topic_id, bounds), start, stop)
    except NoReplay as error:
        raise PositionRefused(str(error)) from error


def ended(conf: Conf, alias: str, replay: Replay) -> bool:
    """Everything is handled. False: it was cancelled meanwhile."""
    connection = connections[alias]
    _forget_seen(conf, connection, replay)
    with transaction.atomic(using=alias):
        return Replays(conf.table).end(connection, replay, is_cancelled=False)


def is_open(conf: Conf, alias: str, replay: Replay) -> bool:
    return any(one.id == replay.id for one in Replays(conf.table).open(connections[alias], replay.consumer))


def cancelled(conf: Conf, target: Target, topic: str, *, actor: str, reason: str = "") -> Replay:
    """What it has handled stays. A process that runs it stops."""
    replays, connection = Replays(conf.table), connections[target.alias]
    for replay in replays.open(connection, target.name, topic):
        _forget_seen(conf, connection, replay)
        with transaction.atomic(using=target.alias):
            if replays.end(connection, replay, is_cancelled=True):
                write_audit_log(target.alias, actor, "replay-cancel", reason, _details(replay))
                return replay
    raise ReplayRefused(
        f"The consumer {target.name!r} has no replay in {topic!r} that has not ended. Run outbox_replay without "
        "arguments: it lists those of all consumers."
    )


def _forget_seen(conf: Conf, connection: Any, replay: Replay) -> None:
    seen = SeenIds(conf.table, window_s=0)
    while seen.tidy(connection, replay.name):
        pass


def left(conf: Conf, alias: str, consumer: str | None = None) -> list[OpenReplay]:
    """Those that have not ended."""
    connection, positions = connections[alias], positions_of(conf)
    found = []
    for replay in Replays(conf.table).open(connection, consumer):
        at = positions.everything(connection, replay.name)
        ahead = {one: max(0, span.stop - at[one].next) for one, span in replay.spans.items() if one in at}
        found.append(OpenReplay(replay, ahead))
    return found


def _details(replay: Replay) -> dict[str, Any]:
    return {
        "consumer": replay.consumer,
        "topic": replay.topic,
        "replay": replay.id,
        "stashes": replay.stashes,
        "offsets": {partition.number: [span.start, span.stop] for partition, span in replay.spans.items()},
    }
