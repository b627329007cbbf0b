"""What operators do about holds and dead letters; the commands and the admin call these functions and nothing else.

Each is one transaction with bulk statements and leaves one audit log entry. A record that is still in the outbox is
deleted by its harvester alone, which knows that it is not on its way: such a request is written down, and carried out
within about two seconds where a harvester works, else when the next one begins. `Outcome.pending` counts these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.db import connections, transaction

from outbox.edges.postgres.operations import records
from outbox.models import DeadLetter, Hold, OutboxRecord
from outbox.operations.editing import NotConfirmed, edit, edit_dead
from outbox.operations.outcomes import IDS_KEPT, REJECTED, Outcome, alias_of, put_back, write_audit_log
from outbox.operations.selection import NothingSelected, OperationRefused, Selector

__all__ = (
    "NotConfirmed",
    "NothingSelected",
    "OperationRefused",
    "Outcome",
    "Selector",
    "discard",
    "discard_dead_letters",
    "edit",
    "edit_dead",
    "pause",
    "pause_keys",
    "requeue",
    "resume",
    "retry",
    "skip",
)


def _bulk(
    what: str,
    selector: Selector,
    actor: str,
    reason: str,
    dry_run: bool,
    alias: str | None,
    *,
    holds: Callable[[Any], Any] | None = None,
    dead: Callable[[str, Any], int] | None = None,
) -> Outcome:
    """`holds` narrows the holds and gives the value of `wanted`; `dead` changes the dead letters of a query."""
    selector.require()
    found_alias = alias_of(alias)
    with transaction.atomic(using=found_alias):
        held: list[tuple[int, int | None]] = []
        wanted = ""
        if holds is not None:
            query, wanted = holds(selector.holds(found_alias).filter(reason__in=REJECTED, record_id__isnull=False))
            if not dry_run:
                query = query.select_for_update()  # none is given another record before it is changed
            found = query.values_list("pk", "record_id", "stashed_at")
            held = [(pk, record_id) for pk, record_id, at in found if selector.is_meant(pk, record_id, at)]
        letters = list(selector.dead_letters(found_alias).values_list("pk", "record_id")) if dead is not None else []
        matched = len(held) + len(letters)
        ids = sorted(id_ for _, id_ in (*held, *letters) if id_ is not None)
        if dry_run or not matched:
            return Outcome(what, matched, dry_run=dry_run, details={"ids": ids[:IDS_KEPT]})
        pending = Hold.objects.using(found_alias).filter(pk__in=[pk for pk, _ in held]).update(wanted=wanted)
        changed = dead(found_alias, [pk for pk, _ in letters]) if dead is not None and letters else 0
        details = {"selector": selector.as_dict(), "holds": pending, "dead_letters": changed, "ids": ids[:IDS_KEPT]}
        write_audit_log(found_alias, actor, what, reason, details)
    return Outcome(what, matched, changed, pending, details={"ids": ids[:IDS_KEPT]})


def retry(selector: Selector, actor: str, reason: str = "", dry_run: bool = False, alias: str | None = None) -> Outcome:
    """The harvester tries held records again now."""
    return _bulk("retry", selector, actor, reason, dry_run, alias, holds=lambda q: (q, "retry"))


def requeue(
    selector: Selector, actor: str, reason: str = "", dry_run: bool = False, alias: str | None = None
) -> Outcome:
    """Dead letters go back into the outbox as new records, in the order they once had, behind what their keys have sent
    since."""
    return _bulk("requeue", selector, actor, reason, dry_run, alias, dead=put_back)


def skip(selector: Selector, actor: str, reason: str = "", dry_run: bool = False, alias: str | None = None) -> Outcome:
    """Held records become dead letters, and their keys continue. A topic that is held as a whole is left out: none of
    its records is at fault."""
    return _bulk("skip", selector, actor, reason, dry_run, alias, holds=lambda q: (_of_records(q), "skip"))


def discard(
    selector: Selector, actor: str, reason: str = "", dry_run: bool = False, alias: str | None = None
) -> Outcome:
    """The harvester deletes held records for good."""
    return _bulk("discard", selector, actor, reason, dry_run, alias, holds=lambda q: (_of_records(q), "discard"))


def discard_dead_letters(
    selector: Selector, actor: str, reason: str = "", dry_run: bool = False, alias: str | None = None
) -> Outcome:
    """Dead letters, usually those of some age, are deleted for good."""
    return _bulk("discard", selector, actor, reason, dry_run, alias, dead=_delete)


def _of_records(query: Any) -> Any:
    return query.filter(key__isnull=False)


def _delete(alias: str, pks: list[int]) -> int:
    return DeadLetter.objects.using(alias).filter(pk__in=pks).delete()[0]


# ---- pauses


def pause(
    *,
    topic: str | None = None,
    key: str | None = None,
    lane: int | None = None,
    actor: str,
    reason: str = "",
    dry_run: bool = False,
    alias: str | None = None,
) -> Outcome:
    """Send nothing more of a key, a topic or a lane until `resume`. What is on its way still arrives; the lanes named
    in `Hold.confirmed_by` have nothing on its way any more."""
    if (lane is None) == (topic is None) or (lane is not None and key is not None):
        raise OperationRefused("Name either a topic, a topic and a key, or a lane.")
    if key == "":
        raise OperationRefused("Records without a key have no order among each other: pause their topic.")
    if lane is not None and lane < 0:
        raise OperationRefused(f"Lane {lane} does not exist: lanes are numbered from 0.")
    found_alias = alias_of(alias)
    hold = Hold(topic=topic or "", key=key, lane=lane, reason=Hold.Reason.PAUSED)
    with transaction.atomic(using=found_alias):
        there = Hold.objects.using(found_alias).filter(topic=hold.topic, key=key, lane=lane, reason=hold.reason)
        if there.exists():
            raise OperationRefused(f"It is paused already: {hold.scope}.")
        if not dry_run:
            Hold.objects.using(found_alias).bulk_create([hold], ignore_conflicts=True)
            write_audit_log(found_alias, actor, "pause", reason, {"scope": hold.scope})
    return Outcome("pause", 1, 0 if dry_run else 1, dry_run=dry_run, details={"scope": hold.scope})


def pause_keys(record_ids: Sequence[int], *, actor: str, reason: str = "", alias: str | None = None) -> Outcome:
    """As `pause` does, the keys of records in the outbox, in one statement. What is paused already stays so; records
    without a key are left out, because they have no order among each other."""
    found_alias = alias_of(alias)
    table, holds = (model._meta.db_table for model in (OutboxRecord, Hold))
    with transaction.atomic(using=found_alias), connections[found_alias].cursor() as cursor:
        ids = records.pause_keys(cursor, table, holds, Hold.Reason.PAUSED.value, record_ids)
        placed = Hold.objects.using(found_alias).filter(pk__in=ids)
        scopes = sorted(hold.scope for hold in placed.only("topic", "key"))
        details = {"pauses": len(scopes), "scopes": scopes[:IDS_KEPT]}
        if scopes:
            write_audit_log(found_alias, actor, "pause", reason, details)
    return Outcome("pause", len(scopes), len(scopes), details=details)


def resume(
    selector: Selector, actor: str, reason: str = "", dry_run: bool = False, alias: str | None = None
) -> Outcome:
    """End pauses, and edits that were broken off; the records go on in their order within about a second."""
    selector.require()
    found_alias = alias_of(alias)
    with transaction.atomic(using=found_alias):
        paused = selector.holds(found_alias).filter(reason__in=(Hold.Reason.PAUSED, Hold.Reason.EDITING))
        found = list(paused)
        details = {"scopes": [hold.scope for hold in found][:IDS_KEPT]}
        if dry_run or not found:
            return Outcome("resume", len(found), dry_run=dry_run, details=details)
        changed = Hold.objects.using(found_alias).filter(pk__in=[hold.pk for hold in found]).delete()[0]
        write_audit_log(found_alias, actor, "resume", reason, {"selector": selector.as_dict(), **details})
    return Outcome("resume", len(found), changed, details=details)
