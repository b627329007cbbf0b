"""The page on which a record is edited: held, pending or dead."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from outbox.admin.forms import EditForm
from outbox.admin.message_view import ShownMessage
from outbox.operations import actions as operations

WAIT_S = 10.0
GONE = "This record no longer exists: it was delivered or deleted in the meantime."
_CHANGED = "This {} was changed after you loaded the page. Nothing was saved. Load the page again."


@dataclass(frozen=True, slots=True)
class Editing:
    """The texts of the page, and what it does."""

    what: str
    title: str
    text: str
    button: str
    done: str
    save: Callable[..., Any]
    """Takes the changes, `actor` and `reason`."""
    fixed: Mapping[str, str] = field(default_factory=dict)
    """Parts that cannot be changed at all, with the reason."""


def of_outbox(message: ShownMessage) -> Editing:
    """Of a record, or of a dead letter of the outbox."""
    return Editing(
        what="record",
        title=f"Edit record {message.record.pk}",
        text=(
            "The harvester sends the record with your changes, and then the later records of its key in their order."
            if message.dead_id is None
            else "The dead letter becomes a new record of the outbox, with your changes."
        ),
        button="Save and send again",
        done="You have saved the record. The harvester sends it again, and after it the later records of its key.",
        save=partial(_save_in_outbox, message),
    )


def edit_view(
    model_admin: admin.ModelAdmin[Any],
    request: HttpRequest,
    message: ShownMessage | None,
    editing_of: Callable[[ShownMessage], Editing] = of_outbox,
    gone: str = GONE,
) -> HttpResponse:
    """The caller has checked the permission."""
    back = reverse(f"admin:outbox_{model_admin.model._meta.model_name}_changelist")
    if message is None:
        model_admin.message_user(request, gone, messages.WARNING)
        return HttpResponseRedirect(back)
    editing = editing_of(message)
    given, locked = request.POST if request.method == "POST" else None, {**message.locked, **editing.fixed}
    form = EditForm(given, initial=_initial(message), locked=locked)
    if form.is_valid() and _save(form, request, message, editing):
        model_admin.message_user(request, editing.done, messages.SUCCESS)
        return HttpResponseRedirect(back)
    context = {
        **model_admin.admin_site.each_context(request),
        "title": editing.title,
        "text": editing.text,
        "notes": [note for note in locked.values() if note],
        "button": editing.button,
        "opts": model_admin.model._meta,
        "form": form,
        "seen": message.fingerprint,
    }
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(request, "admin/outbox/form.html", context)


def _initial(message: ShownMessage) -> dict[str, Any]:
    return {
        "topic": message.record.kafka_topic,
        "key": message.record.kafka_key,
        "value": message.value or "",
        "is_tombstone": message.value is None,
        "headers": json.dumps([list(pair) for pair in message.headers], ensure_ascii=False),
    }


def _save(form: EditForm, request: HttpRequest, message: ShownMessage, editing: Editing) -> bool:
    if request.POST.get("seen") != message.fingerprint:
        form.add_error(None, _CHANGED.format(editing.what))
        return False
    try:
        editing.save(form.changes(), actor=request.user.get_username(), reason=form.cleaned_data["why"])
    except operations.OperationRefused as error:
        form.add_error(None, str(error))
        return False
    return True


def _save_in_outbox(message: ShownMessage, changes: Mapping[str, Any], **given: Any) -> None:
    if message.dead_id is not None:
        operations.edit_dead(message.dead_id, changes, **given)
    else:
        operations.edit(record_id=message.record.pk, changes=changes, wait_s=WAIT_S, **given)
