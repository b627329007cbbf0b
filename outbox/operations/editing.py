"""Edits of a record that is held, pending or dead.

A record in the outbox may be in flight. So an edit first puts its key under a hold. It changes the record after the
lane has confirmed that it does not send the key. Then the key continues, in its order.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from django.db import IntegrityError, connections, transaction

from outbox import conf as settings
from outbox.core.holds.values import OF_RECORDS
from outbox.edges.postgres.operations import lanes
from outbox.exceptions import InvalidMessage
from outbox.messages.message import as_pairs
from outbox.messages.validation import Row, Validator
from outbox.models import DeadLetter, Hold, OutboxRecord
from outbox.operations.outcomes import Outcome, alias_of, put_back, write_audit_log
from outbox.operations.selection import OperationRefused, lane_count
from outbox.schema.expressions import has_time
from outbox.schema.fields import is_not_utf8

FIELDS = ("topic", "key", "value", "headers")
_LOOK_S = 0.1
_DEAD_COLUMNS = ("topic", "key", "value", "value_binary", "header_keys", "header_values")
_COLUMNS = (
    "kafka_topic", "kafka_key", "kafka_value", "kafka_value_binary", "kafka_header_keys", "kafka_header_values",
)  # fmt: skip


class NotConfirmed(OperationRefused):
    """No harvester has confirmed in time that it does not send the record."""


def edit(
    *,
    record_id: int,
    changes: Mapping[str, Any],
    actor: str,
    reason: str = "",
    wait_s: float = 30.0,
    dry_run: bool = False,
    alias: str | None = None,
) -> Outcome:
    """Changes some of `FIELDS` of a record in the outbox, or of the dead letter that it became, and has it sent.

    Waits up to `wait_s` for the record's lane. If the key changes, the harvester may find the record only at its next
    sweep (SWEEP_INTERVAL)."""
    found_alias = alias_of(alias)
    record = OutboxRecord.objects.using(found_alias).filter(pk=record_id).first()
    if record is None:
        letter = DeadLetter.objects.using(found_alias).filter(record_id=record_id).order_by("-pk").first()
        if letter is None:
            raise OperationRefused(f"Record {record_id} is neither in the outbox nor among the dead letters.")
        return edit_dead(letter.pk, changes, actor=actor, reason=reason, dry_run=dry_run, alias=found_alias)
    row = _checked(changes, _fields_of(record, _COLUMNS))
    if dry_run:
        return Outcome("edit", 1, dry_run=True, details={"id": record_id, "fields": sorted(changes)})
    if connections[found_alias].in_atomic_block:
        raise OperationRefused(
            "An edit waits for the harvester, which cannot see what an open transaction has written. Call it outside "
            "of transaction.atomic(), and in a view with transaction.non_atomic_requests."
        )
    hold = _hold_for_edit(record, found_alias)
    try:
        _await_confirmation(hold, found_alias, time.monotonic() + wait_s, wait_s)
        return _change(hold, record_id, row, changes, actor, reason, found_alias)
    finally:
        Hold.objects.using(found_alias).filter(pk=hold.pk).delete()


def edit_dead(
    dead_id: int,
    changes: Mapping[str, Any],
    *,
    actor: str,
    reason: str = "",
    dry_run: bool = False,
    alias: str | None = None,
) -> Outcome:
    """Changes a dead letter and puts it back into the outbox as a new record."""
    found_alias = alias_of(alias)
    with transaction.atomic(using=found_alias):
        letter = DeadLetter.objects.using(found_alias).select_for_update().filter(pk=dead_id).first()
        if letter is None:
            raise OperationRefused(f"Dead letter {dead_id} no longer exists: it was requeued or deleted.")
        row = _checked(changes, _fields_of(letter, _DEAD_COLUMNS))
        details = {"id": letter.record_id, "fields": sorted(changes)}
        if dry_run:
            return Outcome("edit", 1, dry_run=True, details=details)
        DeadLetter.objects.using(found_alias).filter(pk=dead_id).update(**_values(row, _DEAD_COLUMNS))
        put_back(found_alias, [dead_id])
        write_audit_log(found_alias, actor, "edit", reason, {**details, "was": "dead"})
    return Outcome("edit", 1, 1, details=details)


# ---- one step each


def _hold_for_edit(record: Any, alias: str) -> Hold:
    """Commits before it returns, so that the lane sees the hold."""
    hold = Hold(
        topic=record.kafka_topic, key=record.kafka_key, record_id=record.pk, reason=Hold.Reason.EDITING,
        stashed_at=record.create_time,
    )  # fmt: skip
    try:
        hold.save(using=alias, force_insert=True)
    except IntegrityError as error:  # a query before would not help: two edits may begin at once
        raise OperationRefused(
            f"Another edit of {record}, or of its key, has not ended. If it was broken off, end it with: "
            "manage.py outbox_resume, and --id or --topic and --key."
        ) from error
    return hold


def _await_confirmation(hold: Hold, alias: str, give_up_at: float, wait_s: float) -> None:
    lane = lane_of(hold.key or "", hold.record_id or 0, alias)
    while True:
        found = Hold.objects.using(alias).filter(pk=hold.pk).values_list("confirmed_by", flat=True).first()
        if found is None:
            raise OperationRefused("Another operator has ended this edit. Nothing was changed.")
        if lane in found:
            return
        if time.monotonic() > give_up_at:
            raise NotConfirmed(
                f"Lane {lane} did not confirm within {wait_s:g} s that it does not send the record. Nothing was "
                "changed. Check with manage.py outbox_stats whether the lane has an owner. Start a harvester, or wait "
                "longer."
            )
        time.sleep(_LOOK_S)


def _change(
    hold: Hold, record_id: int, row: Row, changes: Mapping[str, Any], actor: str, reason: str, alias: str
) -> Outcome:
    with transaction.atomic(using=alias):
        if not Hold.objects.using(alias).filter(pk=hold.pk).delete()[0]:
            raise OperationRefused("Another operator has ended this edit. Nothing was changed.")
        same = has_time("create_time", hold.stashed_at)
        if not OutboxRecord.objects.using(alias).filter(same, pk=record_id).update(**_values(row, _COLUMNS)):
            raise OperationRefused(f"Record {record_id} was delivered or deleted in the meantime. Nothing was changed.")
        known = has_time("stashed_at", hold.stashed_at) | has_time("stashed_at", None)
        refused = Hold.objects.using(alias).filter(known, record_id=record_id, reason__in=OF_RECORDS)
        pending = refused.exclude(wanted__in=("skip", "discard")).update(wanted="retry")
        details = {"id": record_id, "fields": sorted(changes)}
        write_audit_log(alias, actor, "edit", reason, details)
    return Outcome("edit", 1, 1, pending, details=details)


def lane_of(key: str, record_id: int, alias: str) -> int:
    """As in `edges.postgres.exactly_once.reader.lane_of_row`."""
    count = lane_count(alias)
    if not key and not settings.current().harvest.keep_empty_key:
        return (record_id & (1 << 63) - 1) % count
    with connections[alias].cursor() as cursor:
        return lanes.of_key(cursor, key, count)


# ---- fields


def _fields_of(found: Any, columns: tuple[str, ...]) -> dict[str, Any]:
    topic, key, value, binary, names, texts = (getattr(found, column) for column in columns)
    value = bytes(binary) if binary is not None else value
    return {
        "topic": topic,
        "key": key,
        "value": value,
        "headers": tuple(zip(names or (), texts or (), strict=True)),
    }


def _checked(changes: Mapping[str, Any], present: dict[str, Any]) -> Row:
    """The whole new message, after the checks of `stash`. No header is added to it."""
    if not changes or not set(changes) <= set(FIELDS):
        raise OperationRefused(
            f"An edit can change {', '.join(FIELDS)}. You gave: {', '.join(sorted(changes)) or 'none'}."
        )
    wanted = {**present, **changes}
    if broken := [name for name in FIELDS if is_not_utf8(wanted[name])]:
        raise OperationRefused(f"Parts of the record are not UTF-8: {', '.join(broken)}. Change these too.")
    conf = settings.current()
    bare = replace(conf, stash=replace(conf.stash, message_id_header="", correlation_id_header="", tracing=False))
    try:
        pairs = as_pairs(wanted["headers"] or ())
        return Validator(bare).row(wanted["topic"], wanted["value"], wanted["key"], pairs, None, None)
    except InvalidMessage as error:
        raise OperationRefused(str(error)) from error


def _values(row: Row, columns: tuple[str, ...]) -> dict[str, Any]:
    values = (row.topic, row.key, row.value, row.binary, list(row.names), list(row.values))
    return dict(zip(columns, values, strict=True))
