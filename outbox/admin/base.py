"""The base of the admin's pages.

Django's own forms add, change and delete nothing. Rows come from the database of the settings. No list reads more rows
than it shows.
"""

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
_LOOKUPS = ("__exact", "__isnull")  # Django's filter of a field with choices links to these

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
    _Paginator = Paginator[Any]
else:
    _ModelAdmin = admin.ModelAdmin
    _Paginator = Paginator


def waiting(view: Callable[..., Any]) -> Callable[..., Any]:
    """Exempts a view from ATOMIC_REQUESTS: it waits for the harvester, which cannot see what an open transaction has
    written."""
    try:
        alias = conf.current().database
    except conf.ConfErrors:  # the checks report them; Django builds the addresses of the whole site at this moment
        return view
    return transaction.non_atomic_requests(using=alias)(view)


def may_see_payload(request: HttpRequest) -> bool:
    return bool(request.user.has_perm(PAYLOAD))


class BoundedPaginator(_Paginator):
    """Counts and pages the first `COUNT_MAX` rows. Search and filters reach the rest."""

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
        # Django would take any lookup on any column from the query string. A user without the permission could then
        # guess a payload piece by piece.
        return lookup in {f"{name}{end}" for name in self.list_filter for end in _LOOKUPS}

    def get_queryset(self, request: HttpRequest) -> Any:
        return self.model._default_manager.using(conf.current().database).order_by(*self.ordering or ("pk",))
