"""The outbox table of one alias, read through Django's connection."""

from __future__ import annotations

from typing import Any

from outbox.exceptions import OutboxError
from outbox.testing.messages import StashedMessage


class NotCommitted(OutboxError):
    """The test harvests or consumes inside its own transaction, which could still roll the records back."""


class StashedTable:
    """`using` is the alias; without it, that of the settings."""

    def __init__(self, using: str | None = None) -> None:
        self._using = using

    @property
    def alias(self) -> str:
        from outbox import conf

        return self._using or conf.current().database

    @property
    def queryset(self) -> Any:
        from outbox.models import OutboxRecord

        return OutboxRecord.objects.using(self.alias)

    def records(self) -> Any:
        return self.queryset.order_by("id")

    def messages(self, after: int | None = None) -> list[StashedMessage]:
        """Return the messages that wait in the table, in the order of ids: all of them, or those behind an id."""
        records = self.records() if after is None else self.records().filter(id__gt=after)
        return [message_of(record) for record in records]

    def last_id(self) -> int | None:
        found: int | None = self.queryset.order_by("-id").values_list("id", flat=True).first()
        return found

    def require_committed(self, call: str, reader: str) -> None:
        from django.db import connections

        blocks = getattr(connections[self.alias], "atomic_blocks", [])
        if any(not getattr(block, "_from_testcase", False) for block in blocks):
            raise NotCommitted(
                f"{call} was called inside transaction.atomic(). Its records can still be rolled back, so no "
                f"{reader} would see them. Call {call} after the block."
            )


def message_of(record: Any) -> StashedMessage:
    binary = record.kafka_value_binary
    headers = zip(record.kafka_header_keys or (), record.kafka_header_values or (), strict=True)
    return StashedMessage(
        record.pk,
        record.kafka_topic,
        record.kafka_key,
        record.kafka_value if binary is None else bytes(binary),
        tuple(headers),
        record.create_time,
    )
