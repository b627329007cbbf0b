"""The operators' actions on holds and dead letters. The commands and the admin change them only by these functions.

Each action is one transaction with bulk statements and adds one audit log entry. Only the harvester deletes a record
that is still in the outbox, because it alone knows that the record is not in flight. So the action writes a request. A
running harvester carries it out within about two seconds, otherwise the next one does. `Outcome.pending` counts the
requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.db import connections, transaction

from outbox.core.holds.values import OF_RECORDS
from outbox.edges.postgres.operations import records
from outbox.models import DeadLetter, Hold, OutboxRecord
from outbox.operations.editing import NotConfirmed, edit, edit_dead
from outbox.operations.outcomes import IDS_KEPT, Outcome, alias_of, put_back, write_audit_log
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
    reason: str = "",
    dry_run: bool = False,
    alias: str | None = None,
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
            query, wanted = holds(selector.holds(found_alias).filter(reason__in=OF_RECORDS, record_id__isnull=False))
            if not dry_run:
                query = query.select_for_update()  # so that no hold passes to another record before the change
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


def _of_records(query: Any) -> Any:
    return query.filter(key__isnull=False)


def _delete(alias: str, pks: list[int]) -> int:
    return DeadLetter.objects.using(alias).filter(pk__in=pks).delete()[0]


retry = partial(_bulk, "retry", holds=lambda q: (q, "retry"))
"""Requests that the harvester retries held records now."""
requeue = partial(_bulk, "requeue", dead=put_back)
"""Puts dead letters back into the outbox as new records, in their old order, behind the later records of their keys."""
skip = partial(_bulk, "skip", holds=lambda q: (_of_records(q), "skip"))
"""Requests that held records become dead letters, so that their keys continue. A topic that is held as a whole is left
out, because no record of it is the cause."""
discard = partial(_bulk, "discard", holds=lambda q: (_of_records(q), "discard"))
"""Requests that the harvester deletes held records for good."""
discard_dead_letters = partial(_bulk, "discard", dead=_delete)
"""Deletes dead letters for good, usually those of some age."""


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
    """Sends nothing more of a key, a topic or a lane until `resume`. Records in flight still arrive; the lanes named
    in `Hold.confirmed_by` have none in flight."""
    if (lane is None) == (topic is None) or (lane is not None and key is not None):
        raise OperationRefused("A pause needs either a topic, or a topic and a key, or a lane. Name one of these.")
    if key == "":
        raise OperationRefused(
            "Records without a key have no order, so they cannot be paused by key. Pause their topic."
        )
    if lane is not None and lane < 0:
        raise OperationRefused(f"Lane {lane} does not exist, because lanes are numbered from 0. Name one from 0.")
    found_alias = alias_of(alias)
    hold = Hold(topic=topic or "", key=key, lane=lane, reason=Hold.Reason.PAUSED)
    with transaction.atomic(using=found_alias):
        there = Hold.objects.using(found_alias).filter(topic=hold.topic, key=key, lane=lane, reason=hold.reason)
        if there.exists():
            raise OperationRefused(f"A pause exists already for {hold.scope}. Nothing was changed.")
        if not dry_run:
            Hold.objects.using(found_alias).bulk_create([hold], ignore_conflicts=True)
            write_audit_log(found_alias, actor, "pause", reason, {"scope": hold.scope})
    return Outcome("pause", 1, 0 if dry_run else 1, dry_run=dry_run, details={"scope": hold.scope})


def pause_keys(record_ids: Sequence[int], *, actor: str, reason: str = "", alias: str | None = None) -> Outcome:
    """Pauses the keys of these records of the outbox, as `pause` does, in one statement. Keys that are paused already
    stay paused. Records without a key are left out, because they have no order."""
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
    """Ends pauses, and edits that were broken off. The harvester sends the records in their order within about a
    second."""
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
