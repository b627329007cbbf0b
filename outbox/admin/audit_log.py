"""The audit log in the admin: read-only pages that show every change by an operator."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from outbox.admin.base import ReadOnlyAdmin
from outbox.admin.explain import cut
from outbox.models import AuditLogEntry

LIST_CHARS = 160


@admin.register(AuditLogEntry)
class AuditLogEntryAdmin(ReadOnlyAdmin):
    actions = None
    list_display = ("at", "who", "what", "why_start", "details_start")
    list_display_links = ("at",)
    ordering = ("-id",)
    sortable_by = ()
    search_fields = ("who", "what")
    fields = readonly_fields = ("at", "who", "what", "why", "details_whole")

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        if not search_term or "\0" in search_term:
            return (queryset.none() if search_term else queryset), False
        return queryset.filter(who=search_term) | queryset.filter(what=search_term), False

    @admin.display(description="why")
    def why_start(self, row: AuditLogEntry) -> str:
        return cut(row.why, LIST_CHARS)

    @admin.display(description="details")
    def details_start(self, row: AuditLogEntry) -> str:
        return cut(json.dumps(row.details, ensure_ascii=False), LIST_CHARS) if row.details else ""

    @admin.display(description="details")
    def details_whole(self, row: AuditLogEntry) -> SafeString:
        text = json.dumps(row.details, ensure_ascii=False, indent=2)
        return format_html('<pre class="outbox-pre">{}</pre>', text)
