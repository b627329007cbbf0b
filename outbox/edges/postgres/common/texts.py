"""Texts that are not UTF-8.

A database that has no encoding (SQL_ASCII) keeps and returns whatever bytes it was given.

A session that asks such a database for UTF-8 fails at the first record that is not UTF-8, with an error that does not
name the record. So the session asks for the bytes. Bytes that are not UTF-8 reach Python as lone surrogates, which no
Kafka client accepts: such a record is rejected like any other that cannot be sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from psycopg.types.string import StrBinaryDumper, StrDumperUnknown, TextBinaryLoader, TextLoader

from outbox.documents import page

ERRORS = "surrogateescape"
NOT_ENCODED = "SQL_ASCII"
_TYPES = ("text", "varchar", "bpchar", "name", '"char"')


class _Dumper(StrDumperUnknown):
    def dump(self, obj: str) -> Any:
        return super().dump(obj) if obj.isascii() else obj.encode(errors=ERRORS)


class _BinaryDumper(StrBinaryDumper):
    def dump(self, obj: str) -> Any:
        return obj.encode(errors=ERRORS)


class _Loader(TextLoader):
    def load(self, data: Any) -> str:
        return str(data, "utf-8", ERRORS)


class _BinaryLoader(TextBinaryLoader):
    def load(self, data: Any) -> str:
        return str(data, "utf-8", ERRORS)


def has_encoding(connection: psycopg.Connection[Any]) -> bool:
    """Told by the server when the connection was made; a pooler that keeps it to itself stands before one that has."""
    return connection.info.parameter_status("server_encoding") != NOT_ENCODED


def take_bytes(connection: psycopg.Connection[Any]) -> None:
    """Of a database without an encoding: nothing that is in it makes a statement fail."""
    connection.execute(f"/* encoding */ SET client_encoding = '{NOT_ENCODED}'")
    adapters = connection.adapters
    for dumper in (_BinaryDumper, _Dumper):
        adapters.register_dumper(str, dumper)
    for name in _TYPES:
        adapters.register_loader(name, _Loader)
        adapters.register_loader(name, _BinaryLoader)
    adapters.register_loader(0, _Loader)


def explained(error: BaseException) -> str:
    """PostgreSQL's words, which say nothing of a record. Its encodings other than UTF-8 have bytes that stand for no
    character, and a session that reads one of them fails."""
    if not isinstance(error, psycopg.errors.UntranslatableCharacter):
        return str(error)
    return (
        f"{error} (SQLSTATE {error.sqlstate}). This is not an outage: a record has bytes that the database's encoding "
        f"accepts, but that are no character in UTF-8. Change or delete it; {page('table')} explains how to find it. "
        "Until then the harvester reads nothing."
    )


def check_names(names: Iterable[str]) -> None:
    """Raises for those that are not UTF-8: confluent-kafka 2.16 crashes the process for the name of a header, where it
    raises for any other text."""
    for name in names:
        if not name.isascii():
            name.encode()


def not_utf8(
    topic: str,
    key: str,
    value: str | bytes | None = None,
    names: Sequence[Any] | None = None,
    values: Sequence[Any] | None = None,
) -> str:
    """Which part of a record is not UTF-8, without showing it; empty: none."""
    parts: Iterable[tuple[str, Any]] = (
        ("topic", topic),
        ("key", key),
        ("value", value),
        *(("name of a header", name) for name in names or ()),
        *(("value of a header", text) for text in values or ()),
    )
    for part, text in parts:
        if not isinstance(text, str):
            continue
        try:
            text.encode()
        except UnicodeEncodeError as error:
            place, byte = len(text[: error.start].encode(errors=ERRORS)), ord(text[error.start]) & 0xFF
            return (
                f"The {part} of the record is not UTF-8: its byte {place} is 0x{byte:02x}. The database has no "
                "encoding and accepted it. Edit the record or discard it."
            )
    return ""
