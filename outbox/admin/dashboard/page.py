"""The dashboard as a page of the admin, in the place of the list of samples."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError, ProgrammingError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.response import TemplateResponse
from django.urls import path

from outbox import conf
from outbox.admin.base import ReadOnlyAdmin
from outbox.admin.dashboard.contents import STATEMENT_TIMEOUT_S, DashboardPage, read
from outbox.models import Sample

EVERY_S = 5


@admin.register(Sample)
class DashboardAdmin(ReadOnlyAdmin):
    def get_urls(self) -> list[Any]:
        parts = path("parts/", self.admin_site.admin_view(self.parts), name="outbox_dashboard_parts")
        return [parts, *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        page, trouble = self._read(request)
        context = {
            **self.admin_site.each_context(request),
            "title": "Dashboard",
            "opts": self.model._meta,
            "every_s": EVERY_S,
            "page": page,
            "trouble": trouble,
            **(extra_context or {}),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/outbox/dashboard.html", context, status=503 if trouble else 200)

    def parts(self, request: HttpRequest) -> HttpResponse:
        """The parts that change, for the script of the page."""
        page, trouble = self._read(request)
        if trouble:
            return HttpResponse(trouble, status=503, content_type="text/plain; charset=utf-8")
        request.current_app = self.admin_site.name
        return render(request, "admin/outbox/dashboard/parts.html", {"page": page})

    def _read(self, request: HttpRequest) -> tuple[DashboardPage | None, str]:
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            settings = conf.current()
        except conf.ConfErrors as errors:
            return None, str(errors)
        try:
            return read(settings, lambda name: request.user.has_perm(f"outbox.view_{name}")), ""
        except ProgrammingError:
            return None, (
                f"PostgreSQL has not all tables of {settings.table!r} on the alias {settings.database!r}, or this "
                "database user may not read them. Grant the user SELECT, or run: "
                f"python manage.py migrate outbox --database {settings.database}"
            )
        except (OperationalError, InterfaceError) as error:
            reason = " ".join(str(error).split())
            return None, f"PostgreSQL did not answer within {STATEMENT_TIMEOUT_S} s: {reason}. Load the page again."
