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
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from outbox.admin import explain, message_view
from outbox.admin.actions import ActForm, Seen, confirm, is_across, seen_of, selected, tell_rest
from outbox.admin.base import ReadOnlyAdmin, may_see_payload
from outbox.admin.forms import WHY_CHARS
from outbox.admin.wording import moment, plural, were
from outbox.models import DeadLetter, Hold
from outbox.operations import actions as operations

HISTORY_MAX = 50
LIST_CHARS = 80
NOTHING = "Nothing was changed. The action does not apply to the selected rows, or they no longer exist."


class KeptAdmin(ReadOnlyAdmin):
    """The pages of holds or of dead letters."""

    action_form = ActForm
    change_form_template = "admin/outbox/kept_change.html"
    sortable_by = ()
    edit_text = "Edit and send again…"

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

    def act_on_shown(
        self,
        request: HttpRequest,
        queryset: Any,
        operation: Callable[..., operations.Outcome],
        name: str,
        title: str,
        text: str,
        button: str,
        done: str,
    ) -> HttpResponse | None:
        """Asks first if the action also takes rows that the user has not seen: those of other pages of the list."""
        why = why_of(request)
        if is_across(request):
            asked, why = confirm(self, request, queryset, name, title, text, button, gives_up=False)
            if asked is not None:
                return asked
        self.act(request, queryset, operation, done, why)
        return None

    def selector(self, rows: Sequence[Seen]) -> operations.Selector:
        raise NotImplementedError

    # ---- columns

    @admin.display(description="why")
    def why(self, row: Hold | DeadLetter) -> str:
        return explain.explained(row)[0]

    @admin.display(description="why, and the next step")
    def why_and_step(self, row: Hold | DeadLetter) -> SafeString:
        return format_html('<span class="outbox-why"><b>{}</b><br>{}</span>', *explain.explained(row))

    @admin.display(description="next step")
    def step(self, row: Hold | DeadLetter) -> str:
        return explain.explained(row)[1]

    @admin.display(description="message")
    def record_hidden(self, row: Hold | DeadLetter) -> str:
        return message_view.HIDDEN

    @admin.display(description="attempts so far")
    def attempts_made(self, row: Hold | DeadLetter) -> SafeString:
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


def shown_fields(request: HttpRequest, fields: tuple[str, ...]) -> tuple[str, ...]:
    """The fields of the page of one row; the message only for users who may see it."""
    if may_see_payload(request):
        return fields
    return tuple("record_hidden" if name == "record" else name for name in fields)


def search(queryset: Any, term: str) -> Any:
    if not term:
        return queryset
    if "\0" in term:
        return queryset.none()
    found = queryset.filter(topic=term) | queryset.filter(key=term)
    if term.isascii() and term.isdigit() and len(term) < 19:
        found |= queryset.filter(record_id=int(term))
    return found
