"""From a message to the row that is inserted: serialisation, added headers, and every check on contents.

Each error names the field, the value seen and the limit. This module does not use the database.
"""

import os
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from outbox.conf import Conf
from outbox.exceptions import InvalidMessage, OutboxError
from outbox.messages.context import TRACE_PARENT, current_correlation_id, trace_headers
from outbox.messages.message import Pair, shown
from outbox.serializers import Serializer, resolve

TOPIC_MAX = 249
# Kafka and the harvester add this to key, value and headers: 61 bytes of record batch, 21 of record, and headers such
# as the record's id. Each header adds up to two lengths of two bytes to its text.
RESERVE_BYTES = 256
HEADER_RESERVE_BYTES = 4
# A character has at most this many bytes in UTF-8. A text that is short by this measure needs no counting.
UTF8_MAX = 4

_is_topic = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_MAX}}}").fullmatch
# Tables that set the version and variant in a random UUID (RFC 9562, section 5.4).
_VERSION = bytes(0x40 | byte & 0x0F for byte in range(256))
_VARIANT = bytes(0x80 | byte & 0x3F for byte in range(256))
_UUID_FORM = b"00000000-0000-0000-0000-000000000000"
_UUID_DIGITS = [at for at, character in enumerate(_UUID_FORM) if character != ord("-")]


class Row(NamedTuple):
    """A validated message as the table stores it; `size` is its size in Kafka."""

    topic: str
    key: str
    value: str | None
    binary: bytes | None
    names: tuple[str, ...]
    values: tuple[str, ...]
    size: int


# It takes half the time of Row(...), which matters for a hundred thousand messages.
_new_tuple = tuple.__new__


class Validator:
    """Turns messages into rows, with the settings, the correlation id and the entropy of one call."""

    def __init__(self, conf: Conf, expected: int = 1) -> None:
        self.conf = conf
        self.serializer: Serializer | None = None
        self.next_id: Callable[[], str] = message_ids(expected).__next__
        self.message_id_header = conf.stash.message_id_header
        self.correlation_id_header = conf.stash.correlation_id_header
        self.correlation_id = current_correlation_id() if conf.stash.correlation_id_header else None
        self.trace = trace_headers() if conf.stash.tracing else ()
        self.short_key = conf.stash.key_max_bytes // UTF8_MAX
        self.max_bytes = conf.stash.max_message_bytes - RESERVE_BYTES

    def row(
        self,
        topic: str,
        value: Any,
        key: str,
        pairs: tuple[Pair, ...],
        message_id: str | None,
        correlation_id: str | None,
    ) -> Row:
        """Check the message and return the row to insert."""
        if not isinstance(topic, str):
            raise _not_text("topic", topic)
        topic = checked_topic(topic)
        if type(key) is not str:
            key = _key_text(key)
        if len(key) > self.short_key:
            self._check_key(key)
        if type(value) is not str and value is not None:
            value = self.serialized(value)
        text, binary = (None, value) if type(value) is bytes else (value, None)
        names, values = self._headers(pairs, message_id, correlation_id)
        everything = key + (text or "") + "".join(names) + "".join(values)
        if "\0" in everything:
            raise _unfit(_has_nul, "a NUL character, which PostgreSQL cannot store", key, text, names, values)
        try:
            size = len(everything) if everything.isascii() else len(everything.encode())
        except UnicodeEncodeError:
            raise _unfit(_is_broken, "a lone surrogate, which UTF-8 cannot express", key, text, names, values) from None
        size += len(binary or b"") + HEADER_RESERVE_BYTES * len(names)
        if size > self.max_bytes:
            raise self._too_large(size, key, text, binary)
        return _new_tuple(Row, (topic, key, text, binary, names, values, size))

    def _headers(
        self, pairs: tuple[Pair, ...], message_id: str | None, correlation_id: str | None
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return names and values of the given headers, then of the message id, the correlation id and the trace."""
        names, values = zip(*pairs) if pairs else ((), ())  # noqa: B905  (all are pairs; strict= costs)
        header = self.message_id_header
        if message_id is not None:
            if _must_add("message_id", "MESSAGE_ID_HEADER", header, message_id, pairs):
                names, values = (*names, header), (*values, message_id)
        elif header and header not in names:
            names, values = (*names, header), (*values, self.next_id())
        header = self.correlation_id_header
        if correlation_id is not None:
            if _must_add("correlation_id", "CORRELATION_ID_HEADER", header, correlation_id, pairs):
                names, values = (*names, header), (*values, correlation_id)
        elif self.correlation_id is not None and header not in names:
            names, values = (*names, header), (*values, self.correlation_id)
        if self.trace and TRACE_PARENT not in names:
            more_names, more_values = zip(*self.trace, strict=True)
            names, values = names + more_names, values + more_values
        return names, values

    def serialized(self, value: Any) -> str | bytes:
        """Return a value that is not None as the table stores it."""
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, bytes | bytearray | memoryview):
            if not self.conf.stash.binary_values:
                raise _binary_refused(f"{len(bytes(value)):,} bytes of {type(value).__name__}")
            return bytes(value)
        result = self._call_serializer(value)
        if isinstance(result, str):
            return str.__str__(result)
        if self.conf.stash.binary_values:
            return bytes(result)
        try:  # many fast JSON libraries return encoded text
            return bytes(result).decode()
        except UnicodeDecodeError:
            raise _binary_refused(f"the output of {self.conf.stash.serializer}") from None

    def _call_serializer(self, value: Any) -> str | bytes:
        path = self.conf.stash.serializer
        serializer = self.serializer = self.serializer or resolve(path)
        try:
            result = serializer(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidMessage(
                f"value: {shown(value)} of type {type(value).__name__} cannot be serialized by {path}: "
                f"{error or type(error).__name__}. Pass str, bytes or what the serializer understands."
            ) from error
        if not isinstance(result, str | bytes | bytearray | memoryview):
            raise OutboxError(
                f'OUTBOX["SERIALIZER"] {path} returned {shown(result)}, not str or bytes. Correct the function.'
            )
        return result

    def _check_key(self, key: str) -> None:
        size, limit = len(key.encode(errors="surrogatepass")), self.conf.stash.key_max_bytes
        if size > limit:
            raise InvalidMessage(
                f'key: {shown(key)} has {size:,} bytes, over OUTBOX["KEY_MAX_BYTES"] = {limit:,}. '
                "Use a shorter key, e.g. a digest, or raise the limit."
            )

    def _too_large(self, size: int, key: str, text: str | None, binary: bytes | None) -> InvalidMessage:
        in_key = len(key.encode())
        in_value = len(binary if binary is not None else (text or "").encode())
        return InvalidMessage(
            f"message: {size + RESERVE_BYTES:,} bytes (value {in_value:,}, key {in_key:,}, "
            f"headers {size - in_key - in_value:,}, reserve {RESERVE_BYTES}), over "
            f'OUTBOX["MAX_MESSAGE_BYTES"] = {self.conf.stash.max_message_bytes:,}. Send less, e.g. a reference to the '
            "contents, or raise the limit here and max.message.bytes of the topic."
        )


@lru_cache(maxsize=1024)
def checked_topic(topic: str) -> str:
    """Return a valid topic as plain str. The cache keeps valid ones."""
    if _is_topic(topic) and topic not in (".", ".."):
        return str.__str__(topic)
    if not topic:
        raise InvalidMessage('topic: "" is empty. Pass the name of a Kafka topic.')
    if len(topic) > TOPIC_MAX:
        raise InvalidMessage(
            f"topic: {shown(topic)} has {len(topic):,} characters; Kafka allows {TOPIC_MAX}. Use a shorter topic name."
        )
    raise InvalidMessage(
        f"topic: {shown(topic)} is not a topic name. Kafka allows letters, digits, dots, underscores and hyphens "
        'of ASCII, and neither "." nor "..".'
    )


def message_ids(expected: int = 1) -> Iterator[str]:
    """Yield random UUIDs (version 4) as text. It makes many at once, in a fifth of the time of `uuid.uuid4`."""
    while True:
        entropy = bytearray(os.urandom(16 * expected))
        entropy[6::16] = entropy[6::16].translate(_VERSION)
        entropy[8::16] = entropy[8::16].translate(_VARIANT)
        digits = entropy.hex().encode()
        text = bytearray((_UUID_FORM + b" ") * expected)
        for source, target in enumerate(_UUID_DIGITS):
            text[target :: len(_UUID_FORM) + 1] = digits[source::32]
        yield from text.decode().split()


def _must_add(argument: str, setting: str, header: str, given: object, pairs: tuple[Pair, ...]) -> bool:
    """Return whether an id given as an argument must become a header. It must not when the headers already have it."""
    if not header:
        raise InvalidMessage(
            f'{argument}: {shown(given)} was given, but OUTBOX["{setting}"] is empty. Set it or leave the argument out.'
        )
    if not isinstance(given, str):
        raise _not_text(argument, given)
    if not given:
        raise InvalidMessage(f'{argument}: "" is empty. Pass a non-empty string or leave it out.')
    present = [value for name, value in pairs if name == header]
    if present and present != [given]:
        raise InvalidMessage(
            f"{argument}: {shown(given)} was given, but the header {header} has {shown(present[0])}. "
            "Pass only one of them."
        )
    return not present


def _key_text(key: object) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    if key is None:
        raise InvalidMessage('key: None is not str. Leave it out or pass "" for a message without a key.')
    if isinstance(key, bytes | bytearray | memoryview):
        raise InvalidMessage(f"key: {shown(key)} is {type(key).__name__}. The table keeps keys as text: decode it.")
    raise _not_text("key", key)


def _not_text(field: str, value: object) -> InvalidMessage:
    return InvalidMessage(f"{field}: {shown(value)} is {type(value).__name__}, not str. Pass str(...) of it.")


def _binary_refused(what: str) -> InvalidMessage:
    return InvalidMessage(
        f'value: {what}, but OUTBOX["BINARY_VALUES"] is False (the default of at-least-once delivery): a harvester '
        "that does not know the column kafka_value_binary would send the record as a tombstone. Pass text (e.g. "
        "Base64), or set BINARY_VALUES = True once every harvester of the table is this package."
    )


def _has_nul(text: str) -> bool:
    return "\0" in text


def _is_broken(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _unfit(
    test: Callable[[str], bool],
    what: str,
    key: str,
    text: str | None,
    names: tuple[str, ...],
    values: tuple[str, ...],
) -> InvalidMessage:
    """Find the field that failed the fast check of all texts together."""
    fields = [("key", key), ("value", text or "")]
    fields += [("headers: the name", name) for name in names]
    fields += [(f"headers: the value of {shown(name)}", value) for name, value in zip(names, values, strict=True)]
    field, seen = next((field, seen) for field, seen in fields if test(seen))
    remedy = "Remove it" if field != "value" else "Remove it, or pass the value as bytes"
    return InvalidMessage(f"{field}: {shown(seen)} has {what}. {remedy}.")
