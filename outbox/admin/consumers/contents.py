"""The contents of the page as values that are ready to be shown: consumers, and the partitions of each.

All of it comes from the database: where each consumer reads next, and what the owners of partitions have shown last.
Kafka is not asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from urllib.parse import urlencode

from django.db import connections
from django.urls import reverse

from outbox.admin.dashboard.summary import BAD, GOOD, WARN, Notice, Summary
from outbox.admin.reading import bounded, now_of
from outbox.admin.wording import ago, counted, duration, moment, number, plural, rate
from outbox.conf import Conf
from outbox.core.consumers.partition import Life
from outbox.core.consumers.shown import COUNT_MAX, FAILING, MessageCounts
from outbox.core.consumers.values import Partition, Position
from outbox.edges.postgres.operations import messages
from outbox.models import ConsumerPartition
from outbox.operations.positions import positions_of

STALE_S = 30.0
"""An owner writes its rows about every 5 s."""
ROWS_MAX = 1_000
UNKNOWN = "–"
START = "Start a process: python manage.py consume"


@dataclass(frozen=True, slots=True)
class PartitionRow:
    place: str
    state: str
    level: str
    reason: str
    position: str
    lag: str
    lag_s: str
    rate: str
    owner: str
    seen: str
    is_stale: bool


@dataclass(frozen=True, slots=True)
class ConsumerTable:
    name: str
    summary: str
    rows: Sequence[PartitionRow]


@dataclass(frozen=True, slots=True)
class ConsumersPage:
    at: str
    summary: Summary
    consumers: Sequence[ConsumerTable]
    is_cut: bool
    """There are more partitions than the page shows."""
    rows_max: int = ROWS_MAX


def read(conf: Conf, *, sees_held: bool = False) -> ConsumersPage:
    """`sees_held`: whether the user may see held messages; otherwise only their numbers are shown."""
    with bounded(conf.database):
        found = ConsumerPartition.objects.using(conf.database).order_by("consumer", "topic", "partition")
        rows = list(found[: ROWS_MAX + 1])
        now = now_of(conf.database)
        shown = {name: list(of_one) for name, of_one in groupby(rows[:ROWS_MAX], key=lambda row: row.consumer)}
        positions = _positions(conf, shown)
        names = sorted({*shown, *positions})
        with connections[conf.database].cursor() as cursor:
            counts = messages.counts(cursor, conf.table, names)
    tables = [_table(name, shown.get(name, ()), positions[name], counts[name], now) for name in names]
    summary = _summary(rows, list(_undone(counts, sees_held=sees_held)), now)
    return ConsumersPage(moment(now), summary, tables, len(rows) > ROWS_MAX)


def _positions(conf: Conf, shown: Mapping[str, Sequence[ConsumerPartition]]) -> dict[str, dict[Partition, Position]]:
    """Also of consumers that no process has shown."""
    connection, positions = connections[conf.database], positions_of(conf)
    of_shown = {
        name: positions.load(connection, name, [Partition(row.topic, row.partition) for row in rows])
        for name, rows in shown.items()
    }
    others = set(positions.topics(connection)) - shown.keys()
    return of_shown | {name: positions.everything(connection, name) for name in others}


# ---- a consumer


def _table(
    name: str,
    rows: Sequence[ConsumerPartition],
    positions: Mapping[Partition, Position],
    counts: MessageCounts,
    now: datetime,
) -> ConsumerTable:
    if not rows:
        unseen = [_unseen(partition, position) for partition, position in sorted(positions.items())][:ROWS_MAX]
        return ConsumerTable(name, f"No process has shown it yet. {START}", unseen)
    made = [_row(row, positions.get(Partition(row.topic, row.partition)), now) for row in rows]
    return ConsumerTable(name, ", ".join([*_totals(rows, now), *_kept(counts)]), made)


def _kept(counts: MessageCounts) -> Iterator[str]:
    if counts.held:
        yield f"{_messages(counts.held)} held"
    if counts.dead:
        yield _dead(counts.dead)


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{counted(count, COUNT_MAX)} messages"


def _dead(count: int) -> str:
    return "1 dead letter" if count == 1 else f"{counted(count, COUNT_MAX)} dead letters"


def _totals(rows: Sequence[ConsumerPartition], now: datetime) -> Iterator[str]:
    yield plural(len(rows), "partition")
    lags = [row.lag for row in rows if row.lag is not None]
    ages = [row.oldest_age_s for row in rows if row.oldest_age_s is not None]
    if lags:
        more = "" if len(lags) == len(rows) else " at least"
        seconds = f" and {duration(max(ages))}" if ages else ""
        yield f"behind by{more} {plural(sum(lags), 'message')}{seconds}"
    yield rate(sum(row.rate or 0.0 for row in rows if not _is_stale(row, now)))


def _row(row: ConsumerPartition, position: Position | None, now: datetime) -> PartitionRow:
    is_stale = _is_stale(row, now)
    return PartitionRow(
        place=f"{row.topic}[{row.partition}]",
        state=row.state,
        level=_level(row.state, is_stale=is_stale),
        reason=row.reason,
        position=UNKNOWN if position is None else number(position.next),
        lag=UNKNOWN if row.lag is None else number(row.lag),
        lag_s=UNKNOWN if row.oldest_age_s is None else duration(row.oldest_age_s),
        rate=UNKNOWN if row.rate is None or is_stale else rate(row.rate),
        owner=row.owner,
        seen=ago(row.seen_at, now),
        is_stale=is_stale,
    )


def _unseen(partition: Partition, position: Position) -> PartitionRow:
    place = f"{partition.topic}[{partition.number}]"
    nothing = (UNKNOWN, UNKNOWN, UNKNOWN)
    return PartitionRow(place, "not shown", WARN, "", number(position.next), *nothing, "", "never", is_stale=True)


def _level(state: str, *, is_stale: bool) -> str:
    if state in (Life.STOPPED.value, FAILING):
        return BAD
    return WARN if is_stale or state != Life.READING.value else GOOD


def _is_stale(row: ConsumerPartition, now: datetime) -> bool:
    return (now - row.seen_at).total_seconds() > STALE_S


# ---- all of them


def _undone(counts: Mapping[str, MessageCounts], *, sees_held: bool) -> Iterator[Notice]:
    for name, found in counts.items():
        for count, text, page in (
            (found.undecided, _messages(found.undecided), "consumerhold"),
            (found.dead, _dead(found.dead), "consumerdeadletter"),
        ):
            if count:
                url = f"{reverse(f'admin:outbox_{page}_changelist')}?{urlencode({'consumer': name})}"
                verb = "waits" if count == 1 else "wait"
                link = (url, "Show them") if sees_held else ()
                yield Notice(WARN, f"{text} of {name} {verb} for your decision.", "", *link)


def _summary(rows: Sequence[ConsumerPartition], undone: Sequence[Notice], now: datetime) -> Summary:
    if not rows and not undone:
        return Summary(GOOD, "No process has shown a consumer yet.", [Notice(GOOD, "", START)])
    stopped = [row for row in rows if row.state == Life.STOPPED.value]
    failing = [row for row in rows if row.state == FAILING and not _is_stale(row, now)]
    stale = [row for row in rows if _is_stale(row, now)]
    notices: list[Notice] = []
    if stopped:
        text = f"{plural(len(stopped), 'partition')} of {_named(stopped)} {_is(stopped)} stopped."
        notices.append(Notice(BAD, text, "Read the reason below: it names the remedy."))
    if failing:
        step = "Correct the function, or start the service that it calls. The reason is below."
        notices.append(Notice(BAD, f"Every message of {_named(failing)} fails.", step))
    if stale:
        text = f"No process has shown {plural(len(stale), 'partition')} of {_named(stale)} for {STALE_S:.0f} s."
        step = "Check that its processes run and reach PostgreSQL, or start one: python manage.py consume"
        notices.append(Notice(WARN, text, step))
    notices += undone
    if stopped or failing:
        return Summary(BAD, "Some messages are not being handled.", notices)
    if stale or undone:
        return Summary(WARN, "Read the notices below.", notices)
    return Summary(GOOD, f"Consumers work normally. {plural(len(rows), 'partition')} {_is(rows)} shown.", notices)


def _named(rows: Iterable[ConsumerPartition]) -> str:
    return ", ".join(sorted({row.consumer for row in rows}))


def _is(rows: Sequence[ConsumerPartition]) -> str:
    return "is" if len(rows) == 1 else "are"
