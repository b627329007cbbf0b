"""The page on which a record is edited: held, pending or dead."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from outbox.admin.forms import EditForm
from outbox.admin.message_view import ShownMessage
from outbox.operations import actions as operations

WAIT_S = 10.0
_BUTTON = "Save and send again"
_OF_RECORD = "The harvester sends the record with your changes, and then the later records of its key in their order."
_OF_DEAD = "The dead letter becomes a new record of the outbox, with your changes."
_CHANGED = "This record was changed after you loaded the page. Nothing was saved. Load the page again."


def edit_view(model_admin: admin.ModelAdmin[Any], request: HttpRequest, message: ShownMessage | None) -> HttpResponse:
    """The caller has checked the permission."""
    back = reverse(f"admin:outbox_{model_admin.model._meta.model_name}_changelist")
    if message is None:
        text = "This record no longer exists: it was delivered or deleted in the meantime."
        model_admin.message_user(request, text, messages.WARNING)
        return HttpResponseRedirect(back)
    given = request.POST if request.method == "POST" else None
    form = EditForm(given, initial=_initial(message), locked=message.locked)
    if form.is_valid() and _save(form, request, message):
        text = "You have saved the record. The harvester sends it again, and after it the later records of its key."
        model_admin.message_user(request, text, messages.SUCCESS)
        return HttpResponseRedirect(back)
    context = {
        **model_admin.admin_site.each_context(request),
        "title": f"Edit record {message.record.pk}",
        "text": _OF_RECORD if message.dead_id is None else _OF_DEAD,
        "notes": list(message.locked.values()),
        "button": _BUTTON,
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


def _save(form: EditForm, request: HttpRequest, message: ShownMessage) -> bool:
    if request.POST.get("seen") != message.fingerprint:
        form.add_error(None, _CHANGED)
        return False
    given = {"actor": request.user.get_username(), "reason": form.cleaned_data["why"]}
    try:
        if message.dead_id is not None:
            operations.edit_dead(message.dead_id, form.changes(), **given)
        else:
            operations.edit(record_id=message.record.pk, changes=form.changes(), wait_s=WAIT_S, **given)
    except operations.OperationRefused as error:
        form.add_error(None, str(error))
        return False
    return True
