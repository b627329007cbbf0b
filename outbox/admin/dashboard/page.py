"""The dashboard as a page of the admin, in the place of the list of samples."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import admin

from outbox import conf
from outbox.admin.dashboard.contents import DashboardPage, read
from outbox.admin.live import LivePageAdmin
from outbox.models import Sample


@admin.register(Sample)
class DashboardAdmin(LivePageAdmin):
    page_name = "dashboard"
    page_title = "Dashboard"

    def read_page(self, settings: conf.Conf, may_view: Callable[[str], bool]) -> DashboardPage:
        return read(settings, may_view)
