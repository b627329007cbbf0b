"""What the pages of the admin have in common: nothing is added, changed or deleted by Django's own forms, rows are read
from the database of the settings, and no list asks for more than it shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db import transaction
from django.http import HttpRequest
from django.utils.functional import cached_property

from outbox import conf

COUNT_MAX = 10_000
PAYLOAD = "outbox.view_payload"
_LOOKUPS = ("__exact", "__isnull")  # those that Django's filter of a field with choices links to

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
    _Paginator = Paginator[Any]
else:
    _ModelAdmin = admin.ModelAdmin
    _Paginator = Paginator


def waiting(view: Callable[..., Any]) -> Callable[..., Any]:
    """A view that waits for the harvester, which cannot see what an open transaction has written: not to be wrapped in
    one by ATOMIC_REQUESTS."""
    try:
        alias = conf.current().database
    except conf.ConfErrors:  # the checks tell them; the addresses of the whole site are built at this moment
        return view
    return transaction.non_atomic_requests(using=alias)(view)


def may_see_payload(request: HttpRequest) -> bool:
    return bool(request.user.has_perm(PAYLOAD))


class BoundedPaginator(_Paginator):
    """Counts, and pages, so far and no further: search and filters reach the others."""

    @cached_property
    def count(self) -> int:
        return min(self._counted, COUNT_MAX)

    @property
    def is_cut(self) -> bool:
        return self._counted > COUNT_MAX

    @cached_property
    def _counted(self) -> int:
        queryset: Any = self.object_list
        return int(queryset.order_by()[: COUNT_MAX + 1].count())


class ReadOnlyAdmin(_ModelAdmin):
    change_list_template = "admin/outbox/kept_list.html"
    paginator = BoundedPaginator
    list_per_page = 50
    list_max_show_all = 0
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    view_on_site = False

    class Media:
        css = {"all": ["outbox/dashboard.css"]}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        # Django would take any lookup on any column from the query string, so that the payload could be guessed piece
        # by piece by those who may not see it.
        return lookup in {f"{name}{end}" for name in self.list_filter for end in _LOOKUPS}

    def get_queryset(self, request: HttpRequest) -> Any:
        return self.model._default_manager.using(conf.current().database).order_by(*self.ordering or ("pk",))
