"""How rows of a list are acted on: which of them, the page that asks first, and the reason for the audit trail."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME, ActionForm
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from outbox.admin_pages import held
from outbox.admin_pages.base import COUNT_MAX
from outbox.admin_pages.forms import WHY_CHARS, WhyForm
from outbox.admin_pages.wording import number


class ActForm(ActionForm):
    """Beside the actions of a list: some of them ask nothing more."""

    why = forms.CharField(
        label="Why:", required=False, max_length=WHY_CHARS, widget=forms.TextInput(attrs={"class": "outbox-act-why"})
    )


def selected(queryset: Any) -> tuple[tuple[int, ...], bool]:
    """As many primary keys as one act takes, in the order of the list; and whether there are more."""
    pks = tuple(queryset.values_list("pk", flat=True)[: COUNT_MAX + 1])
    return pks[:COUNT_MAX], len(pks) > COUNT_MAX


def tell_cut(model_admin: admin.ModelAdmin[Any], request: HttpRequest, is_cut: bool) -> None:
    if is_cut:
        text = f"These were {COUNT_MAX:,}, and there are more. Do it again for the others."
        model_admin.message_user(request, text, messages.WARNING)


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
    """The page that asks, or None and the reason when it was answered. `gives_up`: whether data goes away."""
    initial = {"why": request.POST.get("why", "")}
    form = WhyForm(request.POST if "confirmed" in request.POST else None, initial=initial)
    if form.is_valid():
        return None, form.cleaned_data["why"]
    pks, is_cut = selected(queryset)
    rows = [held.cut(str(row), held.KEY_CHARS) for row in queryset[: held.SHOWN_MAX]]
    more = len(pks) - len(rows)
    context = {
        **model_admin.admin_site.each_context(request),
        "title": title,
        "text": text,
        "cut": number(COUNT_MAX) if is_cut else "",
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
    }
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(request, "admin/outbox/confirm.html", context), ""
