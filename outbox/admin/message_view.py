"""A whole message for the pages that show or edit one: from the outbox or from the dead letters, redacted and cut.

The pages check the permission to see it. Editors do not get what the redactor hides from readers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from django.template.defaultfilters import filesizeformat
from django.utils.crypto import salted_hmac
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from outbox import conf
from outbox.admin.explain import cut
from outbox.admin.forms import line_end
from outbox.models import ConsumerHold, DeadLetter, Hold, OutboxRecord
from outbox.operations.held import decoded, text_of
from outbox.redaction import TEXT_MAX, keeps_everything, redact

HEADER_CHARS = 1_000
BINARY_PREFIX_BYTES = 16
EDIT_CHARS_MAX = 1_000_000
HIDDEN = "You need the permission outbox.view_payload to see this."


@dataclass(frozen=True)
class ShownMessage:
    """`record` is for the redactor and has neither value nor headers."""

    record: OutboxRecord
    dead_id: int | None
    value: str | None
    binary: bytes | None
    headers: Sequence[tuple[str, str]] = field(default_factory=tuple)
    key: str | None = None
    """In place of the record's key."""
    headers_locked: str = ""
    """Why a page does not edit the headers."""

    @cached_property
    def shown(self) -> str:
        """The part of the value that a page shows, after the redactor."""
        if self.binary is not None:
            return redact(self.record, "\\x" + self.binary[:BINARY_PREFIX_BYTES].hex())
        return "" if self.value is None else redact(self.record, self.value[:TEXT_MAX])

    @cached_property
    def shown_headers(self) -> list[tuple[str, str]]:
        return shown_headers(self.record, self.headers)

    @cached_property
    def locked(self) -> dict[str, str]:
        """The parts that a page does not edit, with the reason. The redactor cannot hide what it is not given."""
        reasons = {"key": _line_ends("key", self.record.kafka_key), "value": self._value(), "headers": self._headers()}
        return {name: reason for name, reason in reasons.items() if reason}

    @property
    def fingerprint(self) -> str:
        """Changes with the message. Hidden parts cannot be guessed from it, because it depends on the secret key."""
        record = self.record
        which = [record.pk, str(record.create_time)] if self.dead_id is None else [self.dead_id]
        parts = [which, record.kafka_topic, record.kafka_key, self.value, list(self.headers)]
        text = json.dumps(parts).encode() + (self.binary or b"")
        return salted_hmac("outbox.admin.edit", text, algorithm="sha256").hexdigest()

    def _value(self) -> str:
        if self.binary is not None:
            return "The value is binary, and this page edits text. Use the command outbox_edit, or edit the rest here."
        if self.value is None:
            return ""
        if self.shown != self.value[:TEXT_MAX]:
            return 'OUTBOX["REDACTOR"] hides the value or a part of it, so you cannot edit it here.'
        if len(self.value) > TEXT_MAX and not keeps_everything():
            return (
                f'OUTBOX["REDACTOR"] gets the first {TEXT_MAX:,} characters of a value. This value is longer, so you '
                "cannot edit it here."
            )
        if len(self.value) > EDIT_CHARS_MAX:
            return (
                f"The value has {len(self.value):,} characters, and this page edits at most {EDIT_CHARS_MAX:,}. Use "
                "the command outbox_edit, or edit the rest here."
            )
        return _line_ends("value", self.value)

    def _headers(self) -> str:
        if self.shown_headers != list(self.headers):
            return 'OUTBOX["REDACTOR"] hides headers or a part of them, so you cannot edit them here.'
        return self.headers_locked


def shown_headers(record: OutboxRecord, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The redactor gets each value of a header, as it gets the value of the message. Names are shown as they are."""
    if keeps_everything():
        return list(headers)
    return [(name, redact(record, value[:TEXT_MAX])) for name, value in headers]


def _line_ends(name: str, text: str) -> str:
    if line_end(text) is not None:
        return ""
    return (
        f"The {name} has line ends of several kinds, or a CR without LF. Browsers change these. Use the command "
        "outbox_edit, or edit the rest here."
    )


def of_record(pk: int) -> ShownMessage | None:
    record = OutboxRecord.objects.using(conf.current().database).filter(pk=pk).first()
    if record is None:
        return None
    headers = zip(record.kafka_header_keys or (), record.kafka_header_values or (), strict=False)
    bare = OutboxRecord(
        id=pk, kafka_topic=record.kafka_topic, kafka_key=record.kafka_key, create_time=record.create_time
    )
    return ShownMessage(bare, None, record.kafka_value, _bytes(record.kafka_value_binary), tuple(headers))


def of_held(hold: Hold) -> ShownMessage | None:
    """Of the record that a hold stands for. None if it is gone, or if another record has its id."""
    message = of_record(hold.record_id) if hold.record_id is not None else None
    if message is None or hold.stashed_at not in (None, message.record.create_time):
        return None
    return message


def of_dead(pk: int) -> ShownMessage | None:
    letter = DeadLetter.objects.using(conf.current().database).filter(pk=pk).first()
    if letter is None:
        return None
    headers = tuple(zip(letter.header_keys, letter.header_values, strict=False))
    bare = OutboxRecord(id=letter.record_id, kafka_topic=letter.topic, kafka_key=letter.key)
    if letter.stashed_at is not None:
        bare.create_time = letter.stashed_at
    return ShownMessage(bare, letter.pk, letter.value, _bytes(letter.value_binary), headers)


def of_message(held: ConsumerHold) -> ShownMessage:
    """Of a held message or a dead letter of a consumer. Bytes that are no text are hexadecimal."""
    value, key = _bytes(held.value), text_of(held.key)
    text = None if value is None else decoded(value)
    pairs = [(name, _bytes(raw)) for name, raw in zip(held.header_names, held.header_values, strict=True)]
    texts = all(raw is not None and decoded(raw) is not None for _, raw in pairs)
    return ShownMessage(
        OutboxRecord(kafka_topic=held.topic, kafka_key=key or ""),
        held.pk,
        text,
        value if text is None else None,
        tuple((name, text_of(raw) or "") for name, raw in pairs),
        key={None: "(no key)", "": "(empty)"}.get(key, key),
        headers_locked="" if texts else "A header is binary, and this page edits text. Use the command outbox_edit.",
    )


def _bytes(value: object) -> bytes | None:
    return None if value is None else bytes(value)  # type: ignore[call-overload]


def as_html(message: ShownMessage | None) -> SafeString:
    """Always escaped: the text comes from a writer."""
    if message is None:
        return format_html("{}", "The record is no longer in the table: it was delivered or deleted.")
    rows = format_html_join(
        "",
        "<tr><th>{}</th><td>{}</td></tr>",
        ((cut(name, HEADER_CHARS), cut(_untrusted(text), HEADER_CHARS)) for name, text in message.shown_headers),
    )
    return format_html(
        '<dl class="outbox-message"><dt>topic</dt><dd>{}</dd><dt>key</dt><dd>{}</dd><dt>value</dt><dd>{}</dd>'
        "<dt>headers</dt><dd>{}</dd></dl>",
        message.record.kafka_topic,
        cut(message.record.kafka_key if message.key is None else message.key, TEXT_MAX) or "(no key)",
        _value(message),
        format_html("<table>{}</table>", rows) if rows else "(none)",
    )


def _value(message: ShownMessage) -> SafeString:
    if message.binary is not None:
        return format_html("binary, {}: {}…", filesizeformat(len(message.binary)), _untrusted(message.shown))
    if message.value is None:
        return SafeString("<em>tombstone (no value)</em>")
    more = "…" if len(message.value) > TEXT_MAX else ""
    return format_html('<pre class="outbox-pre">{}{}</pre>', _untrusted(message.shown), more)


def _untrusted(text: str) -> str:
    """Escaped later, even if a redactor has marked it as safe: joining it with a plain text removes the mark."""
    return "".join(["", text])
