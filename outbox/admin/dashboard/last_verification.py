"""The result of the last verification of ledger, topics and table (`manage.py outbox_verify`), for the dashboard."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connections
from django.utils.dateparse import parse_datetime

from outbox.admin.wording import ago, plural
from outbox.conf import Conf
from outbox.edges.postgres.operations import companions


@dataclass(frozen=True, slots=True)
class LastVerification:
    is_clean: bool
    said: str
    age: str
    faults: Sequence[str] = ()


def read(conf: Conf, now: datetime) -> LastVerification | None:
    """None if there was no verification, or if the table of another version has no column for one."""
    with connections[conf.database].cursor() as cursor:
        found = companions.last_verification(cursor, conf.table)
    found = json.loads(found) if isinstance(found, str) else found
    return in_words(found, now) if isinstance(found, dict) else None


def in_words(found: dict[str, Any], now: datetime) -> LastVerification:
    faults = [
        f"{fault['kind']}: {fault['count']:,}; the first is {fault['first']}" for fault in found.get("faults", ())
    ]
    checked = f"{plural(found.get('batches', 0), 'batch', 'batches')} with {plural(found.get('records', 0), 'record')}"
    said = f"{plural(len(faults), 'kind')} of fault" if faults else "no record that was lost, sent twice or reordered"
    at = parse_datetime(str(found.get("at", "")))
    age = ago(at, now) if at is not None and at.tzinfo is not None else str(found.get("at", ""))
    return LastVerification(not faults, f"outbox_verify checked {checked} and found {said}.", age, faults)
