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
from outbox.admin.actions import Seen
from outbox.admin.forms import PauseForm
from outbox.admin.kept_base import LIST_CHARS, KeptAdmin
from outbox.admin.message_view import ShownMessage
from outbox.admin.wording import ago
from outbox.core.holds.values import OF_RECORDS
from outbox.models import Hold
from outbox.operations import actions as operations


@admin.register(Hold)
class HoldAdmin(KeptAdmin):
    actions = ("retry", "skip", "discard", "resume")
    list_display = ("what", "why_and_step", "tries", "age", "now")
    list_display_links = ("what",)
    edit_waits = True
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
        pause = path("pause/", self.admin_site.admin_view(self.pause_view), name="outbox_hold_pause")
        return [pause, *super().get_urls()]

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

    def message_of(self, row: Hold) -> ShownMessage | None:
        return message_view.of_held(row)

    # ---- actions

    @admin.action(description="Retry now", permissions=["retry"])
    def retry(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        return self.ask(
            request, queryset, operations.retry, "Retry held records?",
            "The harvester sends these records again, and after each one the later records of its key.", "Retry them",
            "retried", gives_up=False,
        )  # fmt: skip

    @admin.action(description="Skip: move to the dead letters", permissions=["skip"])
    def skip(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        text = (
            "The harvester moves each record to the dead letters and then sends the later records of its key. You can "
            "requeue a dead letter, but its key is then out of order."
        )
        return self.ask(
            request, queryset, operations.skip, "Skip held records?", text, "Skip them", "moved to the dead letters",
        )  # fmt: skip

    @admin.action(description="Discard: delete for good", permissions=["discard"])
    def discard(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        text = (
            "The harvester deletes these records for good and never sends them. It then sends the later records of "
            "their keys."
        )
        return self.ask(
            request, queryset, operations.discard, "Discard held records?", text, "Delete them for good", "deleted",
        )  # fmt: skip

    @admin.action(description="Resume: end the pause", permissions=["pause"])
    def resume(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        return self.ask(
            request, queryset.exclude(reason__in=OF_RECORDS), operations.resume, "End pauses?",
            "The harvester sends the waiting records in their order.", "Resume them", "resumed", gives_up=False,
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
    def record(self, row: Hold) -> SafeString:
        return super().record(row)
