"""The base of the pages of holds and of dead letters: permissions, texts, and how an action runs.

Every change goes through `outbox.operations.actions`, in bulk and with an audit log entry. Buttons on the page of one
row send the same request as the list's actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.urls import path, reverse
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from outbox.admin import explain, message_view
from outbox.admin.actions import ActForm, Seen, confirm, is_across, seen_of, selected, tell_rest
from outbox.admin.base import ReadOnlyAdmin, may_see_payload, waiting
from outbox.admin.edit import GONE, Editing, edit_view, of_outbox
from outbox.admin.forms import WHY_CHARS
from outbox.admin.message_view import ShownMessage
from outbox.admin.wording import moment, plural, were
from outbox.models import Hold
from outbox.operations import actions as operations

HISTORY_MAX = 50
LIST_CHARS = 80
NUMBER_DIGITS = 18
"""Every number of so many fits into bigint."""
NOTHING = "Nothing was changed. The action does not apply to the selected rows, or they no longer exist."


class KeptAdmin(ReadOnlyAdmin):
    """The pages of holds or of dead letters."""

    action_form = ActForm
    change_form_template = "admin/outbox/kept_change.html"
    sortable_by = ()
    edit_text = "Edit and send again…"
    edit_waits = False
    """For the harvester."""
    gone = GONE
    number_field = "record_id"
    """What a number in the search means."""
    explained: Callable[[Any], tuple[str, str]] = staticmethod(explain.explained)
    editing_of: Callable[[ShownMessage], Editing] = staticmethod(of_outbox)

    def message_of(self, row: Any) -> ShownMessage | None:
        raise NotImplementedError

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.edit_view)
        name = f"outbox_{self.model._meta.model_name}_edit"
        return [path("<int:pk>/edit/", waiting(view) if self.edit_waits else view, name=name), *super().get_urls()]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """The fields of the page of one row; the message only for users who may see it."""
        if may_see_payload(request):
            return self.readonly_fields
        return tuple("record_hidden" if name == "record" else name for name in self.readonly_fields)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.get_readonly_fields(request)

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        if not search_term:
            return queryset, False
        if "\0" in search_term:
            return queryset.none(), False
        wanted = Q(topic=search_term) | Q(key=self.stored_key(search_term))
        if search_term.isascii() and search_term.isdigit() and len(search_term) <= NUMBER_DIGITS:
            wanted |= Q(**{self.number_field: int(search_term)})
        return queryset.filter(wanted), False

    def stored_key(self, text: str) -> str | bytes:
        return text

    def _may(self, request: HttpRequest, name: str) -> bool:
        return bool(request.user.has_perm(f"outbox.{name}"))

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "retry")

    def has_requeue_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "requeue")

    def has_skip_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "skip")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "discard")

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "pause")

    def has_edit_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "edit") and may_see_payload(request)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        allowed = self.get_actions(request)
        row = self.get_object(request, object_id)
        context = {
            "outbox_buttons": [(name, text) for name, text in self.buttons_of(row).items() if name in allowed],
            "outbox_checkbox": ACTION_CHECKBOX_NAME,
            "outbox_why_chars": WHY_CHARS,
            "outbox_list": reverse(f"admin:outbox_{self.model._meta.model_name}_changelist"),
            "outbox_edit": self.is_editable(row) and self.has_edit_permission(request),
            "outbox_edit_text": self.edit_text,
            "outbox_edit_url": f"admin:outbox_{self.model._meta.model_name}_edit",
            "object_pk": object_id,
            "outbox_seen": seen_of(row),
        }
        return super().change_view(request, object_id, form_url, {**context, **(extra_context or {})})

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        links = {
            "outbox_dashboard": request.user.has_perm("outbox.view_sample"),
            "outbox_pause": self.model is Hold and self.has_pause_permission(request),
        }
        return super().changelist_view(request, {**links, **(extra_context or {})})

    def buttons_of(self, row: Any) -> dict[str, str]:
        """The names of actions, with the texts of their buttons."""
        raise NotImplementedError

    def is_editable(self, row: Any) -> bool:
        raise NotImplementedError

    def act(
        self,
        request: HttpRequest,
        queryset: Any,
        operation: Callable[..., operations.Outcome],
        done: str,
        why: str = "",
    ) -> None:
        """Runs in bulk: the operation gets primary keys, and changes the rows by statements of its own."""
        chosen = selected(request, queryset)
        if not chosen.rows:
            if not chosen.missed:
                self.message_user(request, NOTHING, messages.WARNING)
            tell_rest(self, request, chosen)
            return
        try:
            outcome = operation(self.selector(chosen.rows), actor=request.user.get_username(), reason=why)
        except operations.OperationRefused as error:
            self.message_user(request, str(error), messages.ERROR)
            return
        tell(self, request, outcome, done)
        tell_rest(self, request, chosen)

    def ask(
        self,
        request: HttpRequest,
        queryset: Any,
        operation: Callable[..., operations.Outcome],
        title: str,
        text: str,
        button: str,
        done: str,
        *,
        gives_up: bool = True,
    ) -> HttpResponse | None:
        """Asks first if the action deletes data or gives up the order of a key, and if it takes rows that the user has
        not seen: those of other pages of the list."""
        why = why_of(request)
        if gives_up or is_across(request):
            name = request.POST["action"]
            asked, why = confirm(self, request, queryset, name, title, text, button, gives_up=gives_up)
            if asked is not None:
                return asked
        self.act(request, queryset, operation, done, why)
        return None

    def selector(self, rows: Sequence[Seen]) -> Any:
        raise NotImplementedError

    def edit_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        if not self.has_edit_permission(request):
            raise PermissionDenied
        row = self.get_queryset(request).filter(pk=pk).first()
        return edit_view(self, request, self.message_of(row) if row else None, self.editing_of, self.gone)

    # ---- columns

    @admin.display(description="why")
    def why(self, row: Any) -> str:
        return self.explained(row)[0]

    @admin.display(description="why, and the next step")
    def why_and_step(self, row: Any) -> SafeString:
        return format_html('<span class="outbox-why"><b>{}</b><br>{}</span>', *self.explained(row))

    @admin.display(description="next step")
    def step(self, row: Any) -> str:
        return self.explained(row)[1]

    @admin.display(description="last error")
    def last_error_start(self, row: Any) -> str:
        return explain.cut(row.last_error, LIST_CHARS)

    @admin.display(description="message")
    def record(self, row: Any) -> SafeString:
        return message_view.as_html(self.message_of(row))

    @admin.display(description="message")
    def record_hidden(self, row: Any) -> str:
        return message_view.HIDDEN

    @admin.display(description="attempts so far")
    def attempts_made(self, row: Any) -> SafeString:
        """The latest first."""
        rows = [
            (_said(attempt.get("at")), attempt.get("code", ""), explain.cut(str(attempt.get("error", "")), 1000))
            for attempt in reversed(row.history[-HISTORY_MAX:])
            if isinstance(attempt, dict)
        ]
        if not rows:
            return format_html("{}", "(none)")
        body = format_html_join("", "<tr><td>{}</td><td>{}</td><td>{}</td></tr>", rows)
        return format_html("<table class=outbox-history>{}</table>", body)


def tell(model_admin: ReadOnlyAdmin, request: HttpRequest, outcome: operations.Outcome, done: str) -> None:
    if outcome.changed:
        model_admin.message_user(request, f"{were(outcome.changed, 'row')} {done}.", messages.SUCCESS)
    if outcome.pending:
        text = f"{plural(outcome.pending, 'row')} will be {done}. {outcome.soon_text}"
        model_admin.message_user(request, text, messages.SUCCESS)
    if outcome.rest_text:
        model_admin.message_user(request, outcome.rest_text, messages.WARNING)
    elif not outcome.changed and not outcome.pending:
        model_admin.message_user(request, NOTHING, messages.WARNING)


def why_of(request: HttpRequest) -> str:
    """The reason that was typed beside an action. Django has checked it by `ActForm`."""
    return request.POST.get("why", "")


def _said(at: Any) -> str:
    found = parse_datetime(at) if isinstance(at, str) else at
    return moment(found) if isinstance(found, datetime) and found.tzinfo else str(at or "")
