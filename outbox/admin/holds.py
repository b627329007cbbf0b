"""Holds in the admin: the lists of them with their reasons, and the form that pauses a topic, a key or a lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone
from django.utils.safestring import SafeString

from outbox.admin import explain, message_view
from outbox.admin.actions import Seen, confirm
from outbox.admin.base import waiting
from outbox.admin.edit import edit_view
from outbox.admin.forms import PauseForm
from outbox.admin.kept_base import LIST_CHARS, KeptAdmin, search, shown_fields
from outbox.admin.wording import ago
from outbox.core.holds.values import OF_RECORDS
from outbox.models import Hold
from outbox.operations import actions as operations


@admin.register(Hold)
class HoldAdmin(KeptAdmin):
    actions = ("retry", "skip", "discard", "resume")
    list_display = ("what", "why_and_step", "tries", "age", "now")
    list_display_links = ("what",)
    list_filter = ("reason",)
    ordering = ("since", "id")
    search_fields = ("topic", "key", "record_id")
    search_help_text = "The search finds exact matches of a topic, a key or the id of a record."
    readonly_fields = (
        "what",
        "reason",
        "why",
        "step",
        "now",
        "since",
        "tries",
        "last_error",
        "record_id",
        "record",
        "attempts_made",
    )

    def get_urls(self) -> list[Any]:
        wrap = self.admin_site.admin_view
        return [
            path("pause/", wrap(self.pause_view), name="outbox_hold_pause"),
            path("<int:pk>/edit/", waiting(wrap(self.edit_view)), name="outbox_hold_edit"),
            *super().get_urls(),
        ]

    def buttons_of(self, row: Hold | None) -> dict[str, str]:
        if row is None:
            return {}
        if row.reason not in OF_RECORDS:
            return {"resume": "Resume"}
        if row.key is None:  # a whole topic: the harvester cannot skip or delete it
            return {"retry": "Retry now"}
        return {"retry": "Retry now", "skip": "Skip…", "discard": "Discard…"}

    def is_editable(self, row: Hold | None) -> bool:
        return row is not None and row.reason in OF_RECORDS and row.record_id is not None

    def selector(self, rows: Sequence[Seen]) -> operations.Selector:
        records = {pk: (record_id, stashed_at) for pk, record_id, stashed_at in rows}
        return operations.Selector(hold_ids=tuple(records), hold_records=records)

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        return search(queryset, search_term), False

    def get_readonly_fields(self, request: HttpRequest, obj: Hold | None = None) -> Any:
        return shown_fields(request, self.readonly_fields)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return shown_fields(request, self.readonly_fields)

    # ---- actions

    @admin.action(description="Retry now", permissions=["retry"])
    def retry(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        return self.act_on_shown(
            request, queryset, operations.retry, "retry", "Retry held records?",
            "The harvester sends these records again, and after each one the later records of its key.", "Retry them",
            "retried",
        )  # fmt: skip

    @admin.action(description="Skip: move to the dead letters", permissions=["skip"])
    def skip(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        text = (
            "The harvester moves each record to the dead letters and then sends the later records of its key. You can "
            "requeue a dead letter, but its key is then out of order."
        )
        asked, why = confirm(self, request, queryset, "skip", "Skip held records?", text, "Skip them")
        return asked or self.act(request, queryset, operations.skip, "moved to the dead letters", why)  # type: ignore[func-returns-value]

    @admin.action(description="Discard: delete for good", permissions=["discard"])
    def discard(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        text = (
            "The harvester deletes these records for good and never sends them. It then sends the later records of "
            "their keys."
        )
        asked, why = confirm(self, request, queryset, "discard", "Discard held records?", text, "Delete them for good")
        return asked or self.act(request, queryset, operations.discard, "deleted", why)  # type: ignore[func-returns-value]

    @admin.action(description="Resume: end the pause", permissions=["pause"])
    def resume(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        return self.act_on_shown(
            request, queryset.exclude(reason__in=OF_RECORDS), operations.resume, "resume",
            "End pauses?", "The harvester sends the waiting records in their order.", "Resume them", "resumed",
        )  # fmt: skip

    # ---- pages

    def pause_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_pause_permission(request):
            raise PermissionDenied
        initial = {name: request.GET[name] for name in ("topic", "key", "lane") if name in request.GET}
        form = PauseForm(request.POST if request.method == "POST" else None, initial=initial)
        if form.is_valid():
            try:
                operations.pause(**form.what(), actor=request.user.get_username(), reason=form.cleaned_data["why"])
            except operations.OperationRefused as error:
                form.add_error(None, str(error))
            else:
                text = "You have set a pause. Records in flight still arrive, but no others until you resume."
                self.message_user(request, text, messages.SUCCESS)
                return HttpResponseRedirect(reverse("admin:outbox_hold_changelist"))
        context = {
            **self.admin_site.each_context(request),
            "title": "Pause a topic, a key or a lane",
            "text": "The outbox keeps the records in their order, and the harvester sends them after you resume.",
            "button": "Pause",
            "opts": self.model._meta,
            "form": form,
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/outbox/form.html", context)

    def edit_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        if not self.has_edit_permission(request):
            raise PermissionDenied
        hold = self.get_queryset(request).filter(pk=pk, record_id__isnull=False).first()
        return edit_view(self, request, message_view.of_held(hold) if hold else None)

    # ---- columns

    @admin.display(description="what")
    def what(self, hold: Hold) -> str:
        return explain.cut(hold.scope, LIST_CHARS)

    @admin.display(description="since")
    def age(self, hold: Hold) -> str:
        return ago(hold.since, timezone.now())

    @admin.display(description="attempts")
    def tries(self, hold: Hold) -> int:
        return hold.attempts

    @admin.display(description="now")
    def now(self, hold: Hold) -> str:
        return explain.became(hold, timezone.now())

    @admin.display(description="record")
    def record(self, hold: Hold) -> SafeString:
        return message_view.as_html(message_view.of_held(hold))
