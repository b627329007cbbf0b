"""The forms that operators fill in: an edit of a record, a pause, a reason.

They check what only a form can get wrong: headers that are no pairs in JSON, fields that exclude each other, texts that
are too long for a column. The operations check whether `stash` would take the message.
"""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any

from django import forms

WHY_CHARS = 500
# The limits of the columns of a hold.
TOPIC_CHARS = 249
LANE_MAX = 2**31 - 1
WHY_HELP = "The audit log keeps the reason, with your name and the time."

_PAIRS = '[["name", "value"], …]'


def _lines(rows: int) -> forms.Textarea:
    return forms.Textarea(attrs={"rows": rows, "spellcheck": "false", "autocomplete": "off"})


class Verbatim(forms.CharField):
    """Text as the user typed it, with LF at the end of each line. Browsers send every line end as CRLF."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"required": False, "strip": False, **given})

    def has_changed(self, initial: Any, data: Any) -> bool:
        return _plain(initial or "") != _plain(data or "")

    def to_python(self, value: Any) -> str:
        return _plain(value or "")


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")


def line_end(text: str) -> str | None:
    """The line end that all lines have; LF if there is none. None if they differ, or if a CR has no LF: a browser would
    change these."""
    feeds, returns, both = (text.count(end) for end in ("\n", "\r", "\r\n"))
    if not returns:
        return "\n"
    return "\r\n" if feeds == returns == both else None


class WhyForm(forms.Form):
    why = forms.CharField(label="Why", required=False, max_length=WHY_CHARS, help_text=WHY_HELP)


class EditForm(WhyForm):
    """`initial` is the present record. `changes` has only the changed fields, with the line ends of the record."""

    topic = forms.CharField(label="Topic", strip=False)
    key = Verbatim(label="Key", widget=_lines(1), help_text="A record with an empty key has no key and no order.")
    is_tombstone = forms.BooleanField(label="Tombstone (no value)", required=False)
    value = Verbatim(label="Value", widget=_lines(14))
    headers = Verbatim(
        label="Headers",
        widget=_lines(4),
        help_text=f"Enter JSON: a list of pairs of name and value in their order, {_PAIRS}.",
    )
    field_order = ("topic", "key", "value", "is_tombstone", "headers", "why")

    def __init__(self, *given: Any, locked: Container[str] = (), **more: Any) -> None:
        """`locked`: those of topic, key, value and headers that the page does not edit."""
        super().__init__(*given, **more)
        for name in ("topic", "key", "value", "is_tombstone", "headers"):
            if ("value" if name == "is_tombstone" else name) in locked:
                del self.fields[name]

    def clean_headers(self) -> list[tuple[str, str]]:
        text = self.cleaned_data["headers"].strip() or "[]"
        try:
            pairs = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(
                f"The headers are not valid JSON: {error}. Enter a list of pairs: {_PAIRS}."
            ) from error
        if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise forms.ValidationError(f"The headers are not a list of pairs. Enter {_PAIRS}.")
        if not all(isinstance(part, str) for pair in pairs for part in pair):
            raise forms.ValidationError("A name or a value of a header is not text. Put each one in quotation marks.")
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
        """Those of the present text. Otherwise consumers would see a change that no operator has made."""
        text: str = self.cleaned_data[name]
        return text.replace("\n", line_end(self.initial[name]) or "\n")


class PauseForm(WhyForm):
    topic = forms.CharField(label="Topic", required=False, strip=False, max_length=TOPIC_CHARS)
    key = forms.CharField(
        label="Key", required=False, strip=False, help_text="Leave it empty to pause the whole topic."
    )
    lane = forms.IntegerField(
        label="Lane", required=False, min_value=0, max_value=LANE_MAX, help_text="Enter a lane in place of a topic."
    )
    field_order = ("topic", "key", "lane", "why")

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        topic, lane = given.get("topic"), given.get("lane")
        if bool(topic) == (lane is not None):
            raise forms.ValidationError("Enter either a topic, with or without a key, or a lane.")
        if lane is not None and given.get("key"):
            raise forms.ValidationError("A lane has no key. Leave the lane or the key empty.")
        return given

    def what(self) -> dict[str, Any]:
        given = self.cleaned_data
        if given["lane"] is not None:
            return {"lane": given["lane"]}
        return {"topic": given["topic"], "key": given["key"] or None}
