"""Held messages and dead letters of consumers: the list of them, and the requests of operators.

Only the consumer that owns the partition changes and deletes the rows, because it alone knows which of them it is
handling. So each action writes a request, in one transaction with one audit log entry. A running consumer carries it
out within about a second, otherwise the next one does. Rows that a consumer is handling at this moment are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import connections, transaction
from django.db.models import Func, IntegerField, Q
from django.db.models.functions import Now

from outbox import conf as settings
from outbox.core.consumers import holding
from outbox.edges.postgres.operations import messages
from outbox.models import ConsumerHold
from outbox.operations.outcomes import IDS_KEPT, Outcome, alias_of, write_audit_log
from outbox.operations.positions import positions_of, require_known
from outbox.operations.selection import NothingSelected, OperationRefused, given_fields

FIELDS = ("value", "headers")
LISTED_MAX = 100

LIVE, DEAD = Q(died_at__isnull=True), Q(died_at__isnull=False)
UNDECIDED = LIVE & Q(next_try__isnull=True) & ~Q(reason=holding.WAITING)
"""Those that are not tried again by themselves. An index has them."""
TRIED = LIVE & Q(next_try__isnull=False) | UNDECIDED
"""Not those that wait behind another one: to try them would change nothing. Two indexes have them."""
_BUSY = "The consumer is handling message {} at this moment. Nothing was changed. Repeat the edit in a few seconds."


@dataclass(frozen=True, slots=True)
class MessageOutcome(Outcome):
    left_out: int = 0
    """Rows that a consumer was handling."""

    @property
    def request_text(self) -> str:
        written = "1 request was" if self.pending == 1 else f"{self.pending:,} requests were"
        them = "it" if self.pending == 1 else "them"
        return f"{written} written. The consumer carries {them} out within a second while it runs."

    @property
    def soon_text(self) -> str:
        return "The consumer does this within a second while it runs."

    @property
    def rest_text(self) -> str:
        if not self.left_out:
            return ""
        rows, they = ("1 row", "it") if self.left_out == 1 else (f"{self.left_out:,} rows", "them")
        return f"The request leaves out {rows}, because the consumer is handling {they} at this moment. Repeat it."


@dataclass(frozen=True, slots=True)
class MessageSelector:
    """A row must match all given fields. `ids` are those of the rows."""

    consumer: str | None = None
    topic: str | None = None
    partition: int | None = None
    key: str | None = None
    offsets: Sequence[int] = ()
    ids: Sequence[int] = ()
    older_than: timedelta | None = None
    all: bool = False

    def require(self) -> None:
        """Raises `NothingSelected`, or `OperationRefused`."""
        given = (self.topic, self.partition, self.key, self.older_than)
        if not (self.all or self.ids or self.offsets) and given == (None,) * 4:
            raise NothingSelected("a topic, a partition, a key, offsets, ids or an age")
        if self.topic is None and (self.key, self.partition) != (None, None):
            raise OperationRefused("A key or a partition belongs to a topic. Name the topic too.")
        if self.offsets and self.partition is None:
            raise OperationRefused("An offset belongs to a partition. Name the topic and the partition too.")

    def rows(self, alias: str, wanted: Q, *, since: str = "since") -> Any:
        for name, value in (("consumer", self.consumer), ("topic", self.topic), ("partition", self.partition)):
            if value is not None:
                wanted &= Q(**{name: value})
        if self.key is not None:
            wanted &= Q(key=self._key)
        if self.offsets:
            wanted &= Q(offset__in=list(self.offsets))
        if self.ids:
            wanted &= Q(pk__in=list(self.ids))
        if self.older_than is not None:
            wanted &= Q(**{f"{since}__lt": Now() - self.older_than})
        return ConsumerHold.objects.using(alias).filter(wanted)

    @property
    def _key(self) -> bytes:
        """A command gets bytes that are no text as surrogates."""
        return (self.key or "").encode(errors="surrogateescape")

    def as_dict(self) -> dict[str, Any]:
        """For the audit log entry."""
        given = given_fields(self)
        return given if self.key is None else {**given, "key": text_of(self._key)}


# ---- requests


def _request(
    what: str,
    wanted: str,
    condition: Q,
    selector: MessageSelector,
    actor: str,
    reason: str = "",
    dry_run: bool = False,
    alias: str | None = None,
    *,
    since: str = "since",
) -> MessageOutcome:
    selector.require()
    found_alias = alias_of(alias)
    with transaction.atomic(using=found_alias):
        rows = selector.rows(found_alias, condition, since=since)
        if dry_run:
            ids = list(rows.order_by("pk").values_list("pk", flat=True))
            return MessageOutcome(what, len(ids), dry_run=True, details={"ids": ids[:IDS_KEPT]})
        matched = rows.count()
        # A wait for a consumer's lock could end in a deadlock, because the consumer locks rows of its own order.
        ids = sorted(rows.select_for_update(skip_locked=True, no_key=True).values_list("pk", flat=True))
        pending = ConsumerHold.objects.using(found_alias).filter(pk__in=ids).update(wanted=wanted) if ids else 0
        if pending:
            details = {"selector": selector.as_dict(), "messages": pending, "ids": ids[:IDS_KEPT]}
            write_audit_log(found_alias, actor, what, reason, details)
    left_out = max(0, matched - pending)
    return MessageOutcome(what, matched, 0, pending, details={"ids": ids[:IDS_KEPT]}, left_out=left_out)


retry = partial(_request, "retry", holding.RETRY, TRIED)
"""Requests that the consumer tries held messages now, and after each one the later messages of its key."""
requeue = partial(_request, "requeue", holding.RETRY, DEAD, since="died_at")
"""Requests that the consumer tries dead letters again. Later messages of their keys may have been handled."""
skip = partial(_request, "skip", holding.SKIP, LIVE)
"""Requests that held messages become dead letters, so that their keys continue."""
discard = partial(_request, "discard", holding.DISCARD, LIVE)
"""Requests that the consumer deletes held messages for good, so that their keys continue."""
discard_dead_letters = partial(_request, "discard", holding.DISCARD, DEAD, since="died_at")
"""Requests that the consumer deletes dead letters for good."""


def edit(
    id: int,
    changes: Mapping[str, Any],
    *,
    actor: str,
    reason: str = "",
    consumer: str | None = None,
    dry_run: bool = False,
    alias: str | None = None,
) -> MessageOutcome:
    """Changes some of `FIELDS` of a held message or a dead letter, and requests that the consumer tries it. The key
    stays as it is, because later messages of the key may wait. A text becomes UTF-8."""
    columns, found_alias = _columns(changes), alias_of(alias)
    rows = MessageSelector(consumer, ids=[id]).rows(found_alias, Q())
    with transaction.atomic(using=found_alias):
        if not rows.exists():
            raise OperationRefused(f"Message {id} is neither held nor a dead letter: it was handled or deleted.")
        details = {"id": id, "fields": sorted(changes)}
        if dry_run:
            return MessageOutcome("edit", 1, dry_run=True, details=details)
        if not list(rows.select_for_update(skip_locked=True, no_key=True).values_list("pk", flat=True)):
            raise OperationRefused(_BUSY.format(id))
        changed = ConsumerHold.objects.using(found_alias).filter(pk=id).update(**columns, wanted=holding.RETRY)
        write_audit_log(found_alias, actor, "edit", reason, {**details, "message": True})
    return MessageOutcome("edit", 1, changed, changed, details=details)


def _columns(changes: Mapping[str, Any]) -> dict[str, Any]:
    if not changes or not set(changes) <= set(FIELDS):
        raise OperationRefused(
            f"An edit of a message can change {' and '.join(FIELDS)}. You gave: {', '.join(sorted(changes)) or 'none'}."
        )
    columns: dict[str, Any] = {}
    try:
        if "value" in changes:
            columns["value"] = _bytes(changes["value"])
        if "headers" in changes:
            pairs = list(changes["headers"] or ())
            columns["header_names"] = [name for name, _ in pairs]
            columns["header_values"] = [_bytes(value) for _, value in pairs]
            "".join(columns["header_names"]).encode()
    except UnicodeEncodeError as error:
        raise OperationRefused(f"A part of the message is not valid text: {error}. Change it.") from error
    if any("\0" in name for name in columns.get("header_names", ())):
        raise OperationRefused("The name of a header has a NUL character, which PostgreSQL does not store. Remove it.")
    return columns


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


# ---- what there is


@dataclass(frozen=True, slots=True)
class ListedMessage:
    """Without its value and headers: they may be large, and secret."""

    id: int
    consumer: str
    topic: str
    partition: int
    offset: int
    key: str | None
    reason: str
    attempts: int
    delays: int
    since: datetime
    next_try: datetime | None
    died_at: datetime | None
    wanted: str
    error: str
    behind: int
    """Later messages of its key that wait, at most `BEHIND_MAX`."""

    def as_dict(self) -> dict[str, Any]:
        times = ("since", "next_try", "died_at")
        return {n: v.isoformat() if n in times and v else v for n, v in asdict(self).items()}


def listed(
    selector: MessageSelector, *, dead: bool = False, limit: int = LISTED_MAX, alias: str | None = None
) -> list[ListedMessage]:
    """The first messages in their order: those that failed, without those that wait behind them; or dead letters."""
    rows = selector.rows(alias_of(alias), DEAD if dead else TRIED, since="died_at" if dead else "since")
    ids = list(rows.order_by("pk").values_list("pk", flat=True)[:limit])
    shown = with_behind(rows.filter(pk__in=ids)).order_by("pk")
    return [_listed(row) for row in shown.defer("value", "header_names", "header_values", "history")]


def with_behind(rows: Any) -> Any:
    """Adds `behind`, the number of later messages of its key that wait, to few rows: each costs a count."""
    template = messages.behind_template(settings.current().table)
    return rows.annotate(behind=Func(template=template, output_field=IntegerField()))


def _listed(row: Any) -> ListedMessage:
    return ListedMessage(
        row.pk, row.consumer, row.topic, row.partition, row.offset, text_of(row.key), row.reason, row.attempts,
        row.delays, row.since, row.next_try, row.died_at, row.wanted, row.last_error, row.behind,
    )  # fmt: skip


def text_of(raw: bytes | memoryview | None) -> str | None:
    """Text if it is UTF-8, else hexadecimal digits."""
    if raw is None:
        return None
    text = decoded(raw)
    return "\\x" + bytes(raw).hex() if text is None else text


def decoded(raw: bytes | memoryview) -> str | None:
    """None: it is no text."""
    try:
        text = bytes(raw).decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def alias_of_consumer(consumer: str, declared: Mapping[str, str], database: str | None) -> str:
    """Raises if nothing has this name. `declared` has the alias of each consumer that apps declare."""
    conf = settings.current()
    alias = database or declared.get(consumer, conf.database)
    stored: set[str] = set()
    if consumer not in declared:
        stored.update(positions_of(conf).topics(connections[alias]))
        if ConsumerHold.objects.using(alias).filter(consumer=consumer).exists():
            stored.add(consumer)
    require_known(consumer, declared, stored)
    return alias
