"""Actions on the rows of a list: the rows that an action takes, the page that asks first, the reason for the audit log.

A page sends back the rows that it has shown, and the action takes only these. Rows come and go in the meantime, and a
hold may pass to the next record of its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME, ActionForm
from django.core.exceptions import BadRequest
from django.db import models
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse

from outbox.admin import explain
from outbox.admin.base import COUNT_MAX
from outbox.admin.forms import WHY_CHARS, WhyForm
from outbox.admin.wording import number, plural
from outbox.models import Hold

Seen = tuple[Any, ...]
"""The primary key of a row, and of a hold the record that it stands for."""
SEEN = "seen"
_FIELDS: dict[Any, tuple[str, ...]] = {Hold: ("pk", "record_id", "stashed_at")}


class ActForm(ActionForm):
    """The field beside the actions of a list, for actions that do not ask first."""

    why = forms.CharField(
        label="Why:", required=False, max_length=WHY_CHARS, widget=forms.TextInput(attrs={"class": "outbox-act-why"})
    )


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows that one action takes."""

    rows: Sequence[Seen]
    is_cut: bool
    """True: more rows were selected than one action takes."""
    missed: int = 0
    """Number of rows that the page has shown and that are gone, or stand for another record now."""

    @property
    def pks(self) -> tuple[int, ...]:
        return tuple(row[0] for row in self.rows)


def selected(request: HttpRequest, queryset: Any) -> Selection:
    """The first `COUNT_MAX` rows of the list. If the page sends back the rows that it has shown: only these."""
    fields = _FIELDS.get(queryset.model, ("pk",))
    if SEEN not in request.POST:
        found = tuple(queryset.values_list(*fields)[: COUNT_MAX + 1])
        return Selection(found[:COUNT_MAX], len(found) > COUNT_MAX)
    shown = request.POST[SEEN].split()[:COUNT_MAX]
    rows = _still_there(queryset.values_list(*fields), shown)
    is_cut = len(shown) == COUNT_MAX and queryset[: COUNT_MAX + 1].count() > COUNT_MAX
    return Selection(rows, is_cut, len(shown) - len(rows))


def _still_there(rows: Any, shown: Sequence[str]) -> tuple[Seen, ...]:
    try:
        pks = [int(text.partition(":")[0]) for text in shown]
    except ValueError as error:
        raise BadRequest(f"The field {SEEN!r} has a value that no page sends. Load the page again.") from error
    wanted = set(shown)
    return tuple(row for row in rows.filter(pk__in=pks) if seen(row) in wanted)


def seen(row: Seen) -> str:
    """A row in the form in which a page sends it back."""
    return ":".join(map(_text, row))


def seen_of(row: models.Model | None) -> str:
    return "" if row is None else seen(tuple(getattr(row, name) for name in _FIELDS.get(type(row), ("pk",))))


def _text(value: Any) -> str:
    return "" if value is None else value.isoformat() if isinstance(value, datetime) else str(value)


def tell_rest(model_admin: admin.ModelAdmin[Any], request: HttpRequest, chosen: Selection) -> None:
    if chosen.missed:
        them = "it was" if chosen.missed == 1 else "they were"
        text = (
            f"The action left out {plural(chosen.missed, 'row')}, because {them} deleted or changed after the page was "
            "loaded."
        )
        model_admin.message_user(request, text, messages.WARNING)
    if chosen.is_cut:
        text = f"The action took only the first {COUNT_MAX:,} rows. Repeat it for the rest."
        model_admin.message_user(request, text, messages.WARNING)


def is_across(request: HttpRequest) -> bool:
    """Whether the action also takes rows of other pages of the list."""
    return request.POST.get("select_across", "0") != "0"


def confirm(
    model_admin: admin.ModelAdmin[Any],
    request: HttpRequest,
    queryset: Any,
    name: str,
    title: str,
    text: str,
    button: str,
    *,
    gives_up: bool = True,
) -> tuple[HttpResponse | None, str]:
    """The page that asks first. After the answer: None, and the reason. `gives_up`: whether the action deletes data or
    gives up the order of a key."""
    initial = {"why": request.POST.get("why", "")}
    is_answer = "confirmed" in request.POST and (SEEN in request.POST or not is_across(request))
    form = WhyForm(request.POST if is_answer else None, initial=initial)
    if form.is_valid():
        return None, form.cleaned_data["why"]
    chosen = selected(request, queryset)
    if chosen.missed and not chosen.rows:
        tell_rest(model_admin, request, chosen)
        return HttpResponseRedirect(request.get_full_path()), ""
    rows = [
        explain.cut(_listed(row), explain.KEY_CHARS) for row in queryset.filter(pk__in=chosen.pks[: explain.SHOWN_MAX])
    ]
    more = len(chosen.rows) - len(rows)
    context = {
        **model_admin.admin_site.each_context(request),
        "title": title,
        "text": text,
        "cut": number(COUNT_MAX) if chosen.is_cut else "",
        "button": button,
        "gives_up": gives_up,
        "action": name,
        "opts": model_admin.model._meta,
        "form": form,
        "rows": rows,
        "more": number(more) if more > 0 else "",
        "checkbox": ACTION_CHECKBOX_NAME,
        "selected": request.POST.getlist(ACTION_CHECKBOX_NAME),
        "across": request.POST.get("select_across", "0"),
        "seen": " ".join(map(seen, chosen.rows)),
    }
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(request, "admin/outbox/confirm.html", context), ""


def _listed(row: models.Model) -> str:
    if isinstance(row, Hold) and row.key and row.record_id is not None:  # other scopes name it or have none
        return f"{row} #{row.record_id}"
    return str(row)
