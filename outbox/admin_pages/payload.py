"""A whole message for the pages that show or edit one: from the outbox or from the dead letters, redacted and cut.

Whether somebody may see it is asked by the pages. What the redactor hides from readers is not given to editors either.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from outbox import conf
from outbox.admin_pages.held import cut
from outbox.models import DeadLetter, OutboxRecord
from outbox.redaction import TEXT_MAX, redact

HEADER_CHARS = 1_000
BINARY_PREFIX_BYTES = 16
EDIT_CHARS_MAX = 1_000_000
HIDDEN = "hidden: seeing it takes the permission outbox.view_payload"


@dataclass(frozen=True)
class Message:
    """`record` has neither value nor headers and serves the redactor."""

    record: OutboxRecord
    dead_id: int | None
    value: str | None
    binary: bytes | None
    headers: Sequence[tuple[str, str]] = field(default_factory=tuple)

    @cached_property
    def shown(self) -> str:
        """As much of the value as a page shows, after the redactor."""
        if self.binary is not None:
            return redact(self.record, "\\x" + self.binary[:BINARY_PREFIX_BYTES].hex())
        return "" if self.value is None else redact(self.record, self.value[:TEXT_MAX])

    @property
    def without_value(self) -> str:
        """Why the value cannot be edited on a page; empty: it can."""
        if self.binary is not None:
            return "The value is binary. Edit it with the command outbox_edit, or edit the rest here."
        if self.value is not None and self.shown != self.value[:TEXT_MAX]:
            return 'OUTBOX["REDACTOR"] hides the value, or part of it, so it cannot be edited here.'
        if self.value is not None and len(self.value) > EDIT_CHARS_MAX:
            return f"The value has {len(self.value):,} characters: too many for a page."
        return ""

    @property
    def fingerprint(self) -> str:
        """Tells whether somebody else has changed it."""
        parts = [self.record.kafka_topic, self.record.kafka_key, self.value, list(self.headers)]
        return sha256(json.dumps(parts).encode() + (self.binary or b"")).hexdigest()


def of_record(pk: int) -> Message | None:
    record = OutboxRecord.objects.using(conf.current().database).filter(pk=pk).first()
    if record is None:
        return None
    headers = zip(record.kafka_header_keys or (), record.kafka_header_values or (), strict=False)
    bare = OutboxRecord(
        id=pk, kafka_topic=record.kafka_topic, kafka_key=record.kafka_key, create_time=record.create_time
    )
    return Message(bare, None, record.kafka_value, _bytes(record.kafka_value_binary), tuple(headers))


def of_dead(pk: int) -> Message | None:
    letter = DeadLetter.objects.using(conf.current().database).filter(pk=pk).first()
    if letter is None:
        return None
    headers = tuple(zip(letter.header_keys, letter.header_values, strict=False))
    bare = OutboxRecord(id=letter.record_id, kafka_topic=letter.topic, kafka_key=letter.key)
    if letter.stashed_at is not None:
        bare.create_time = letter.stashed_at
    return Message(bare, letter.pk, letter.value, _bytes(letter.value_binary), headers)


def _bytes(value: object) -> bytes | None:
    return None if value is None else bytes(value)  # type: ignore[call-overload]


def as_html(message: Message | None) -> SafeString:
    """Always escaped: it is somebody else's text."""
    if message is None:
        return format_html("{}", "It is not in the table any more: it was delivered or deleted.")
    rows = format_html_join(
        "",
        "<tr><th>{}</th><td>{}</td></tr>",
        ((cut(name, HEADER_CHARS), cut(value, HEADER_CHARS)) for name, value in message.headers),
    )
    return format_html(
        '<dl class="outbox-message"><dt>topic</dt><dd>{}</dd><dt>key</dt><dd>{}</dd><dt>value</dt><dd>{}</dd>'
        "<dt>headers</dt><dd>{}</dd></dl>",
        message.record.kafka_topic,
        cut(message.record.kafka_key, TEXT_MAX) or "(no key)",
        _value(message),
        format_html("<table>{}</table>", rows) if rows else "(none)",
    )


def _value(message: Message) -> SafeString:
    if message.binary is not None:
        return format_html("binary, {}: {}…", filesizeformat(len(message.binary)), _untrusted(message.shown))
    if message.value is None:
        return SafeString("<em>tombstone (no value)</em>")
    more = "…" if len(message.value) > TEXT_MAX else ""
    return format_html('<pre class="outbox-pre">{}{}</pre>', _untrusted(message.shown), more)


def _untrusted(text: str) -> str:
    """Without the mark that a redactor may have put on it: joining with a plain text takes it off."""
    return "".join(["", text])
