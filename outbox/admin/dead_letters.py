"""Dead letters in the admin: messages that are no longer sent, kept until an operator decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils import timezone
from django.utils.safestring import SafeString

from outbox.admin import explain, message_view
from outbox.admin.actions import Seen, confirm
from outbox.admin.edit import edit_view
from outbox.admin.kept_base import LIST_CHARS, KeptAdmin, search, shown_fields
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

    def get_urls(self) -> list[Any]:
        edit = path("<int:pk>/edit/", self.admin_site.admin_view(self.edit_view), name="outbox_deadletter_edit")
        return [edit, *super().get_urls()]

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).defer("value", "value_binary", "header_keys", "header_values")

    def buttons_of(self, row: DeadLetter | None) -> dict[str, str]:
        return {"requeue": "Requeue", "discard": "Discard…"} if row is not None else {}

    def is_editable(self, row: DeadLetter | None) -> bool:
        return row is not None

    def selector(self, rows: Sequence[Seen]) -> operations.Selector:
        return operations.Selector(dead_ids=tuple(row[0] for row in rows))

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        return search(queryset, search_term), False

    def get_readonly_fields(self, request: HttpRequest, obj: DeadLetter | None = None) -> Any:
        return shown_fields(request, self.readonly_fields)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return shown_fields(request, self.readonly_fields)

    @admin.action(description="Requeue: put back into the outbox", permissions=["requeue"])
    def requeue(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        return self.act_on_shown(
            request, queryset, operations.requeue, "requeue", "Requeue dead letters?",
            "Each dead letter becomes a new record of the outbox, behind the later records of its key.", "Requeue them",
            "requeued",
        )  # fmt: skip

    @admin.action(description="Discard: delete for good", permissions=["discard"])
    def discard(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        text = "You delete these messages for good. Nothing else keeps a copy of them."
        asked, why = confirm(self, request, queryset, "discard", "Discard dead letters?", text, "Delete them for good")
        return asked or self.act(request, queryset, operations.discard_dead_letters, "deleted", why)  # type: ignore[func-returns-value]

    def edit_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        if not self.has_edit_permission(request):
            raise PermissionDenied
        return edit_view(self, request, message_view.of_dead(pk))

    @admin.display(description="record")
    def name(self, letter: DeadLetter) -> str:
        return explain.cut(str(letter), LIST_CHARS)

    @admin.display(description="since")
    def age(self, letter: DeadLetter) -> str:
        return ago(letter.died_at, timezone.now())

    @admin.display(description="last error")
    def last_error_start(self, letter: DeadLetter) -> str:
        return explain.cut(letter.last_error, LIST_CHARS)

    @admin.display(description="message")
    def record(self, letter: DeadLetter) -> SafeString:
        return message_view.as_html(message_view.of_dead(letter.pk))
