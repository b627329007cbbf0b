"""The common parts of all operations: the outcome, the audit log entry, and the return of a dead letter."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from django.db import connections

from outbox import conf as settings
from outbox.edges.postgres.operations import records
from outbox.models import AuditLogEntry, DeadLetter, OutboxRecord

IDS_KEPT = 1000  # of the records, in an audit log entry


@dataclass(frozen=True, slots=True)
class Outcome:
    what: str
    matched: int
    changed: int = 0
    """Rows that this call has changed."""
    pending: int = 0
    """Requests that the harvester carries out."""
    dry_run: bool = False
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def request_text(self) -> str:
        requests = "1 request" if self.pending == 1 else f"{self.pending:,} requests"
        return f"The running harvester, or the next one, carries out {requests}."

    @property
    def soon_text(self) -> str:
        return "The running harvester does this within a few seconds."

    @property
    def rest_text(self) -> str:
        """About rows that match and were left out."""
        return ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def alias_of(alias: str | None) -> str:
    return alias or settings.current().database


def write_audit_log(alias: str, actor: str, what: str, reason: str, details: dict[str, Any]) -> None:
    AuditLogEntry.objects.using(alias).create(who=actor, what=what, why=reason, details=details)


def put_back(alias: str, pks: list[int]) -> int:
    """Puts dead letters back into the outbox, and returns their number."""
    table, dead = (model._meta.db_table for model in (OutboxRecord, DeadLetter))
    with connections[alias].cursor() as cursor:
        return records.put_back(cursor, table, dead, pks)
