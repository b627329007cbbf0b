"""Dead letters in the admin: messages that are no longer sent, kept until an operator decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from outbox.admin import explain, message_view
from outbox.admin.actions import Seen
from outbox.admin.kept_base import LIST_CHARS, KeptAdmin
from outbox.admin.message_view import ShownMessage
from outbox.admin.wording import ago
from outbox.models import DeadLetter
from outbox.operations import actions as operations


@admin.register(DeadLetter)
class DeadLetterAdmin(KeptAdmin):
    actions = ("requeue", "discard")
    list_display = ("name", "why_and_step", "attempts", "age", "last_error_start")
    list_display_links = ("name",)
    list_filter = ("reason",)
    ordering = ("-id",)
    search_fields = ("topic", "key", "record_id")
    search_help_text = "The search finds exact matches of a topic, a key or the id of a record."
    readonly_fields = (
        "name",
        "reason",
        "why",
        "step",
        "died_at",
        "stashed_at",
        "attempts",
        "last_error",
        "record",
        "attempts_made",
    )

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).defer("value", "value_binary", "header_keys", "header_values")

    def buttons_of(self, row: DeadLetter | None) -> dict[str, str]:
        return {"requeue": "Requeue", "discard": "Discard…"} if row is not None else {}

    def is_editable(self, row: DeadLetter | None) -> bool:
        return row is not None

    def selector(self, rows: Sequence[Seen]) -> operations.Selector:
        return operations.Selector(dead_ids=tuple(row[0] for row in rows))

    def message_of(self, row: DeadLetter) -> ShownMessage | None:
        return message_view.of_dead(row.pk)

    @admin.action(description="Requeue: put back into the outbox", permissions=["requeue"])
    def requeue(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        return self.ask(
            request, queryset, operations.requeue, "Requeue dead letters?",
            "Each dead letter becomes a new record of the outbox, behind the later records of its key.",
            "Requeue them", "requeued", gives_up=False,
        )  # fmt: skip

    @admin.action(description="Discard: delete for good", permissions=["discard"])
    def discard(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        text = "You delete these messages for good. Nothing else keeps a copy of them."
        return self.ask(
            request, queryset, operations.discard_dead_letters, "Discard dead letters?", text, "Delete them for good",
            "deleted",
        )  # fmt: skip

    @admin.display(description="record")
    def name(self, letter: DeadLetter) -> str:
        return explain.cut(str(letter), LIST_CHARS)

    @admin.display(description="since")
    def age(self, letter: DeadLetter) -> str:
        return ago(letter.died_at, timezone.now())
