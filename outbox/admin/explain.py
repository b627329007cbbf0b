"""Holds and dead letters for people: each with the reason in plain words and the next step.

The counts are those of `outbox_stats`. Of the rows, no more are read than a page shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import BooleanField, ExpressionWrapper, Q
from django.urls import reverse

from outbox.admin.wording import ago, counted, duration, plural
from outbox.core.faults import KINDS, in_plain_words
from outbox.core.holds.values import OF_RECORDS
from outbox.edges.postgres.counts import backlog
from outbox.models import DeadLetter, Hold
from outbox.operations.findings import sentence

SHOWN_MAX = 10
TOPICS_NAMED = 3
KEY_CHARS = 120
ERROR_CHARS = 300

_BY_REASON: Mapping[str, tuple[str, str]] = {
    Hold.Reason.PAUSED: ("an operator has paused it", "resume it to send its records again"),
    Hold.Reason.EDITING: (
        "an operator is editing a record",
        "wait until the edit ends; if it was broken off, resume the hold",
    ),
    Hold.Reason.POISON: (
        "two harvesters crashed while they were sending it",
        "read the harvester's log of that time; then edit, skip or discard the record",
    ),
    DeadLetter.Reason.POISON: (
        "two harvesters crashed while they were sending it",
        "read the harvester's log of that time; then edit, requeue or discard the record",
    ),
    DeadLetter.Reason.SKIPPED: ("an operator has skipped it", "requeue it, or discard it"),
    Hold.Reason.REJECTED: ("Kafka rejected it", "edit the record, or discard it"),
    DeadLetter.Reason.REJECTED: ("Kafka rejected it", "edit the record, or discard it"),
}
# Topics that are held as a whole come first: more records wait behind a topic than behind a key.
_WHOLE = ExpressionWrapper(Q(key__isnull=True), output_field=BooleanField())
_SHOWN_OF_DEAD = ("record_id", "topic", "key", "died_at", "reason", "error_code", "last_error", "attempts")
_WANTED = {
    Hold.Wanted.RETRY: "The harvester is about to retry it.",
    Hold.Wanted.SKIP: "The harvester is about to move it to the dead letters.",
    Hold.Wanted.DISCARD: "The harvester is about to delete it.",
}
_WAITS: Mapping[str, str] = {
    Hold.Reason.PAUSED: "It waits until you resume it.",
    Hold.Reason.EDITING: "It waits until the edit ends.",
}


@dataclass(frozen=True, slots=True)
class HeldRow:
    """One hold or dead letter."""

    name: str
    topic: str
    key: str
    record_id: int | None
    reason: str
    step: str
    error: str
    attempts: int
    at: str
    age: str
    became: str
    url: str


@dataclass(frozen=True, slots=True)
class Held:
    rejected: Sequence[HeldRow]
    rejected_count: int
    rejections: Sequence[HeldRow]
    dead_count: int
    paused_count: int
    topic_count: int = 0
    """How many of those rejected are topics as a whole."""
    topics: Sequence[str] = ()
    """Some of these topics by name."""
    keyless_count: int = 0
    """How many of those rejected are records without a key."""
    url: str = ""
    dead_url: str = ""

    @property
    def key_count(self) -> int:
        return self.rejected_count - self.topic_count - self.keyless_count

    @property
    def dead_text(self) -> str:
        return counted(self.dead_count, backlog.COUNT_MAX)

    @property
    def pauses(self) -> str:
        return f"and {plural(self.paused_count, 'pause')}" if self.paused_count else "keys, records and topics"


def explained(kept: Hold | DeadLetter) -> tuple[str, str]:
    """The reason and the next step, each as a sentence. Kafka's error code says more than the reason of the hold."""
    reason = str(kept.reason)
    is_known = kept.error_code in KINDS  # otherwise a newer version has written it
    if is_known and reason in (Hold.Reason.REJECTED, DeadLetter.Reason.REJECTED):
        why, step = in_plain_words(kept.error_code)
    else:
        why, step = _BY_REASON.get(reason, (reason, ""))
    return sentence(why), sentence(step)


def became(hold: Hold, now: datetime) -> str:
    if hold.wanted:
        return _WANTED.get(Hold.Wanted(hold.wanted), hold.wanted)
    if hold.next_try is not None:
        left_s = (hold.next_try - now).total_seconds()
        return f"The harvester retries it in {duration(left_s)}." if left_s >= 1 else "The harvester is retrying it."
    return _WAITS.get(hold.reason, "It waits for your decision.")


def read(
    alias: str, found: Mapping[str, Any], now: datetime, may_view: Callable[[str], bool] = lambda name: True
) -> Held:
    """`found` comes from `operations.stats`. `may_view`: whether the user may see holds or dead letters; otherwise only
    their numbers are shown."""
    sees_holds, sees_dead = may_view("hold"), may_view("deadletter")
    counts = found["holds_by_reason"]
    holds = Hold.objects.using(alias).filter(reason__in=OF_RECORDS).defer("history", "confirmed_by")
    topics = holds.filter(key__isnull=True).exclude(topic="").order_by("topic").values_list("topic", flat=True)
    dead = DeadLetter.objects.using(alias).only(*_SHOWN_OF_DEAD)
    recent: list[tuple[datetime, HeldRow]] = []
    if sees_holds:
        recent += [(hold.since, _of_hold(hold, now)) for hold in holds.order_by("-since", "-id")[:SHOWN_MAX]]
    if sees_dead:
        recent += [(letter.died_at, _of_dead(letter, now)) for letter in dead.order_by("-id")[:SHOWN_MAX]]
    recent.sort(key=lambda found: found[0], reverse=True)
    return Held(
        rejected=[_of_hold(hold, now) for hold in holds.order_by(_WHOLE.desc(), "since", "id")[:SHOWN_MAX]]
        if sees_holds
        else [],
        rejected_count=sum(counts.get(reason, 0) for reason in OF_RECORDS),
        rejections=[row for _, row in recent[:SHOWN_MAX]],
        dead_count=found["dead_letters"] or 0,
        paused_count=counts.get(Hold.Reason.PAUSED, 0),
        topic_count=topics.count(),
        topics=list(topics[:TOPICS_NAMED]) if sees_holds else (),
        keyless_count=holds.filter(key="").count(),
        url=reverse("admin:outbox_hold_changelist") if sees_holds else "",
        dead_url=reverse("admin:outbox_deadletter_changelist") if sees_dead else "",
    )


def cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters]}…"


def _of_hold(hold: Hold, now: datetime) -> HeldRow:
    return _row(hold, hold.scope, hold.since, now, became(hold, now), "admin:outbox_hold_change")


def _of_dead(letter: DeadLetter, now: datetime) -> HeldRow:
    return _row(letter, str(letter), letter.died_at, now, "It is a dead letter.", "admin:outbox_deadletter_change")


def _row(kept: Hold | DeadLetter, scope: str, since: datetime, now: datetime, became: str, page: str) -> HeldRow:
    reason, step = explained(kept)
    return HeldRow(
        cut(scope, KEY_CHARS),
        kept.topic,
        cut(kept.key or "", KEY_CHARS),
        kept.record_id,
        reason,
        step,
        cut(kept.last_error, ERROR_CHARS),
        kept.attempts,
        since.isoformat(timespec="seconds"),
        ago(since, now),
        became,
        reverse(page, args=[kept.pk]),
    )
