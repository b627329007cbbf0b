"""The page Consumers, in the place of the list of their partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from outbox import conf
from outbox.admin.consumers.contents import ConsumersPage, read
from outbox.admin.live import LivePageAdmin
from outbox.models import ConsumerPartition


@admin.register(ConsumerPartition)
class ConsumersAdmin(LivePageAdmin):
    page_name = "consumers"
    page_title = "Consumers"

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """As for the dashboard."""
        return bool(request.user.has_perm("outbox.view_sample"))

    def read_page(self, settings: conf.Conf, may_view: Callable[[str], bool]) -> ConsumersPage:
        return read(settings, sees_held=may_view("consumerhold"))
