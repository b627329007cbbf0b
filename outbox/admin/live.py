"""The base of pages that read the database in a bounded time and update themselves, in the place of a list of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError, ProgrammingError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.response import TemplateResponse
from django.urls import path

from outbox import conf
from outbox.admin.base import ReadOnlyAdmin
from outbox.admin.reading import STATEMENT_TIMEOUT_S

EVERY_S = 5


class LivePageAdmin(ReadOnlyAdmin):
    page_name: str
    page_title: str

    def read_page(self, settings: conf.Conf, may_view: Callable[[str], bool]) -> Any:
        """`may_view`: whether the user may see the model of this name."""
        raise NotImplementedError

    def get_urls(self) -> list[Any]:
        parts = path("parts/", self.admin_site.admin_view(self.parts), name=f"outbox_{self.page_name}_parts")
        return [parts, *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        page, trouble = self._read(request)
        context = {
            **self.admin_site.each_context(request),
            "title": self.page_title,
            "opts": self.model._meta,
            "every_s": EVERY_S,
            "page": page,
            "trouble": trouble,
            "parts_url": f"admin:outbox_{self.page_name}_parts",
            "parts_template": self._parts_template,
            **(extra_context or {}),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/outbox/live.html", context, status=503 if trouble else 200)

    def parts(self, request: HttpRequest) -> HttpResponse:
        """The parts that change, for the script of the page."""
        page, trouble = self._read(request)
        if trouble:
            return HttpResponse(trouble, status=503, content_type="text/plain; charset=utf-8")
        request.current_app = self.admin_site.name
        return render(request, self._parts_template, {"page": page})

    @property
    def _parts_template(self) -> str:
        return f"admin/outbox/{self.page_name}/parts.html"

    def _read(self, request: HttpRequest) -> tuple[Any, str]:
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            settings = conf.current()
        except conf.ConfErrors as errors:
            return None, str(errors)
        try:
            return self.read_page(settings, lambda name: request.user.has_perm(f"outbox.view_{name}")), ""
        except ProgrammingError:
            return None, (
                f"PostgreSQL has not all tables of {settings.table!r} on the alias {settings.database!r}, or this "
                "database user may not read them. Grant the user SELECT, or run: "
                f"python manage.py migrate outbox --database {settings.database}"
            )
        except (OperationalError, InterfaceError) as error:
            reason = " ".join(str(error).split())
            return None, f"PostgreSQL did not answer within {STATEMENT_TIMEOUT_S} s: {reason}. Load the page again."
