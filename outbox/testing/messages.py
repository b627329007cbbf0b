"""Stashed messages as tests see them: one value per record, its comparison with an expected message, and its text."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

SHOWN_CHARS = 300
SHOWN_MESSAGES = 50


class _Anything:
    """Equals every value."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "ANYTHING"


ANYTHING: Any = _Anything()
"""Matches any key, value or header value, also inside a value."""


@dataclass(frozen=True, slots=True)
class StashedMessage:
    """A record as it is, or was, in the table. Headers include those that stash() adds."""

    id: int
    topic: str
    key: str
    value: str | bytes | None
    headers: tuple[tuple[str, str], ...]
    created: datetime | None

    def json(self) -> Any:
        """The value read as JSON."""
        if self.value is None:
            raise ValueError(f"The record {self.id} of the topic {self.topic!r} is a tombstone: it has no value.")
        return json.loads(self.value)

    def header(self, name: str) -> str | None:
        """The first header of that name."""
        return next((value for found, value in self.headers if found == name), None)

    def __str__(self) -> str:
        headers = ", ".join(f"{name}={value}" for name, value in self.headers)
        return f"topic {self.topic!r}, key {self.key!r}, value {_short(self.value)}, headers [{_cut(headers)}]"


@dataclass(frozen=True, slots=True)
class Expected:
    """The message that a test expects. ANYTHING matches every value; the message must have `headers` and may have
    others."""

    topic: str
    key: Any
    value: Any
    headers: tuple[tuple[str, Any], ...]
    serializer: Callable[[Any], str | bytes]

    def differences(self, message: StashedMessage) -> list[str]:
        """Return the names of the fields that differ from the expected ones."""
        found = []
        if self.topic != message.topic:
            found.append("topic")
        if self.key != message.key:
            found.append("key")
        if not self._is_value(message):
            found.append("value")
        missing = [name for name, value in self.headers if not _has(message, name, value)]
        return found + [f"header {name!r}" for name in missing]

    def _is_value(self, message: StashedMessage) -> bool:
        expected, stored = self.value, message.value
        if isinstance(expected, bytes | bytearray | memoryview):
            return stored is not None and bytes(expected) == _bytes(stored)
        if expected is None or isinstance(expected, str) or stored is None:
            return bool(expected == stored)
        return bool(expected == stored) or self._is_same_json(stored)

    def _is_same_json(self, stored: str | bytes) -> bool:
        """Compare as Python objects, without spaces and the order of keys. Dates and decimals compare as they are
        sent."""
        try:
            found = json.loads(stored)
        except ValueError:
            return False
        if self.value == found:
            return True
        try:
            return bool(json.loads(self.serializer(self.value)) == found)
        except (TypeError, ValueError):
            return False

    def __str__(self) -> str:
        lines = [f"  topic   {self.topic!r}"]
        lines += [
            f"  {name:7} {value if isinstance(value, _Anything) else _short(value)}"
            for name, value in (("key", self.key), ("value", self.value))
            if value is not ANYTHING
        ]
        lines += [f"  header  {name}: {value!r}" for name, value in self.headers]
        return "\n".join(lines)


def listing(messages: Sequence[StashedMessage], notes: Mapping[int, str] | None = None) -> str:
    """Return all messages, one line each, for the text of a failure."""
    if not messages:
        return "Nothing was stashed."
    lines = [f"{len(messages)} stashed:"]
    for number, message in enumerate(messages[:SHOWN_MESSAGES], 1):
        note = (notes or {}).get(message.id, "")
        lines.append(f"  {number}. {message}" + (f"   <- {note}" if note else ""))
    if len(messages) > SHOWN_MESSAGES:
        lines.append(f"  … and {len(messages) - SHOWN_MESSAGES} more")
    return "\n".join(lines)


def as_pairs(headers: Mapping[str, Any] | Iterable[tuple[str, Any]] | None) -> tuple[tuple[str, Any], ...]:
    if headers is None:
        return ()
    return tuple(headers.items()) if isinstance(headers, Mapping) else tuple(headers)


def serialized(value: Any) -> str | bytes:
    """Return what the serializer of the settings makes of an object."""
    from outbox import conf
    from outbox.serializers import resolve

    return resolve(conf.current().stash.serializer)(value)


def _has(message: StashedMessage, name: str, value: Any) -> bool:
    return any(found == name and value == text for found, text in message.headers)


def _bytes(stored: str | bytes) -> bytes:
    return stored.encode() if isinstance(stored, str) else stored


class _Short(reprlib.Repr):
    """Shortens large values, so that they do not hide the others."""

    maxstring = maxother = SHOWN_CHARS
    maxdict = maxlist = maxtuple = 20


_short = _Short().repr


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"
