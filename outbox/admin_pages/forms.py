"""What operators fill in: a record that is edited, a pause, a reason. What is in them is checked as `stash` checks it
by the operations, not here."""

from __future__ import annotations

import json
from typing import Any

from django import forms

WHY_CHARS = 500
WHY_HELP = "Goes into the audit trail, with your name and the time."


def _lines(rows: int) -> forms.Textarea:
    return forms.Textarea(attrs={"rows": rows, "spellcheck": "false", "autocomplete": "off"})


class Verbatim(forms.CharField):
    """Text as it was typed; browsers send every line end as CRLF, and what is not changed must stay as it is."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"required": False, "strip": False, **given})

    def has_changed(self, initial: Any, data: Any) -> bool:
        return _plain(initial or "") != _plain(data or "")

    def to_python(self, value: Any) -> str:
        return _plain(value or "")


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")


class WhyForm(forms.Form):
    why = forms.CharField(label="Why", required=False, max_length=WHY_CHARS, help_text=WHY_HELP)


class EditForm(WhyForm):
    """`initial` is the record as it is; `changes` has only what was changed."""

    topic = forms.CharField(label="Topic", strip=False)
    key = Verbatim(label="Key", widget=_lines(1), help_text="Empty: no key, and no order is promised.")
    is_tombstone = forms.BooleanField(label="No value: a tombstone", required=False)
    value = Verbatim(label="Value", widget=_lines(14))
    headers = Verbatim(
        label="Headers",
        widget=_lines(4),
        help_text='As JSON: pairs of name and value in their order, [["name", "value"], …].',
    )
    field_order = ("topic", "key", "value", "is_tombstone", "headers", "why")

    def __init__(self, *given: Any, without_value: str = "", **more: Any) -> None:
        """`without_value`: why the value is not to be edited here; empty: it is."""
        super().__init__(*given, **more)
        self.without_value = without_value
        if without_value:
            del self.fields["value"], self.fields["is_tombstone"]

    def clean_headers(self) -> list[tuple[str, str]]:
        text = self.cleaned_data["headers"].strip() or "[]"
        try:
            pairs = json.loads(text)
            found = [(name, value) for name, value in pairs]
        except ValueError as error:
            raise forms.ValidationError(f"These are no pairs in JSON: {error}.") from error
        except TypeError as error:
            raise forms.ValidationError('These are no pairs in JSON: [["name", "value"], …] is asked for.') from error
        if not all(isinstance(part, str) for pair in found for part in pair):
            raise forms.ValidationError("Names and values of headers are texts, in quotation marks.")
        return found

    def changes(self) -> dict[str, Any]:
        changed = {name: self.cleaned_data[name] for name in ("topic", "key", "headers") if name in self.changed_data}
        if {"value", "is_tombstone"} & set(self.changed_data):
            changed["value"] = None if self.cleaned_data["is_tombstone"] else self.cleaned_data["value"]
        return changed


class PauseForm(WhyForm):
    topic = forms.CharField(label="Topic", required=False, strip=False)
    key = forms.CharField(label="Key", required=False, strip=False, help_text="Empty: the whole topic.")
    lane = forms.IntegerField(label="Lane", required=False, min_value=0, help_text="Instead of a topic.")
    field_order = ("topic", "key", "lane", "why")

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        topic, lane = given.get("topic"), given.get("lane")
        if bool(topic) == (lane is not None):
            raise forms.ValidationError("Name either a topic, with or without a key, or a lane.")
        if lane is not None and given.get("key"):
            raise forms.ValidationError("A lane has no key: leave one of them empty.")
        return given

    def what(self) -> dict[str, Any]:
        given = self.cleaned_data
        if given["lane"] is not None:
            return {"lane": given["lane"]}
        return {"topic": given["topic"], "key": given["key"] or None}
