"""What operators fill in: a record that is edited, a pause, a reason.

Here is checked what only a form can get wrong: whether headers are pairs in JSON, which fields exclude each other, what
is too long for a column. Whether a message is one that `stash` would take is judged by the operations.
"""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any

from django import forms

WHY_CHARS = 500
# What the columns of a hold take.
TOPIC_CHARS = 249
LANE_MAX = 2**31 - 1
WHY_HELP = "Goes into the audit log, with your name and the time."


def _lines(rows: int) -> forms.Textarea:
    return forms.Textarea(attrs={"rows": rows, "spellcheck": "false", "autocomplete": "off"})


class Verbatim(forms.CharField):
    """Text as it was typed, with LF at the end of each line: browsers send every line end as CRLF."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"required": False, "strip": False, **given})

    def has_changed(self, initial: Any, data: Any) -> bool:
        return _plain(initial or "") != _plain(data or "")

    def to_python(self, value: Any) -> str:
        return _plain(value or "")


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")


def line_end(text: str) -> str | None:
    """The one that all lines have; LF where there is none. None where they differ, or where CR stands alone: a browser
    would not send them back as they were."""
    feeds, returns, both = (text.count(end) for end in ("\n", "\r", "\r\n"))
    if not returns:
        return "\n"
    return "\r\n" if feeds == returns == both else None


class WhyForm(forms.Form):
    why = forms.CharField(label="Why", required=False, max_length=WHY_CHARS, help_text=WHY_HELP)


class EditForm(WhyForm):
    """`initial` is the record as it is; `changes` has only what was changed, with the line ends that were there."""

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

    def __init__(self, *given: Any, locked: Container[str] = (), **more: Any) -> None:
        """`locked`: of key, value and headers those that are not to be edited here."""
        super().__init__(*given, **more)
        for name, belongs_to in (("key", "key"), ("value", "value"), ("is_tombstone", "value"), ("headers", "headers")):
            if belongs_to in locked:
                del self.fields[name]

    def clean_headers(self) -> list[tuple[str, str]]:
        text = self.cleaned_data["headers"].strip() or "[]"
        try:
            pairs = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(f"These are no pairs in JSON: {error}.") from error
        if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise forms.ValidationError('These are no pairs in JSON: [["name", "value"], …] is asked for.')
        if not all(isinstance(part, str) for pair in pairs for part in pair):
            raise forms.ValidationError("Names and values of headers are texts, in quotation marks.")
        return [(name, value) for name, value in pairs]

    def changes(self) -> dict[str, Any]:
        changed: dict[str, Any] = {
            name: self.cleaned_data[name] for name in ("topic", "headers") if name in self.changed_data
        }
        if "key" in self.changed_data:
            changed["key"] = self._with_line_ends("key")
        if {"value", "is_tombstone"} & set(self.changed_data):
            changed["value"] = None if self.cleaned_data["is_tombstone"] else self._with_line_ends("value")
        return changed

    def _with_line_ends(self, name: str) -> str:
        """Those that the text had: every consumer would see them changed, and nobody has changed them."""
        text: str = self.cleaned_data[name]
        return text.replace("\n", line_end(self.initial[name]) or "\n")


class PauseForm(WhyForm):
    topic = forms.CharField(label="Topic", required=False, strip=False, max_length=TOPIC_CHARS)
    key = forms.CharField(label="Key", required=False, strip=False, help_text="Empty: the whole topic.")
    lane = forms.IntegerField(
        label="Lane", required=False, min_value=0, max_value=LANE_MAX, help_text="Instead of a topic."
    )
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
