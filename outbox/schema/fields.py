"""Fields for texts of other writers. A database without an encoding (SQL_ASCII) stores any bytes as text, and cannot
return them as UTF-8. A single such record would make every page and command that reads it fail.

There, these fields read the bytes and show those that are not UTF-8 as `\\xff`. In other databases they behave like
Django's fields, and migrations use the names of those.
"""

from __future__ import annotations

import json
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models


class NotUtf8(str):
    """A text that replaces bytes that are not UTF-8. A caller must not write it back."""

    __slots__ = ()


def is_not_utf8(value: Any) -> bool:
    texts = value if isinstance(value, list | tuple) else [value]
    return any(is_not_utf8(text) if isinstance(text, list | tuple) else isinstance(text, NotUtf8) for text in texts)


def has_encoding(connection: Any) -> bool:
    """Return whether the database of a Django connection has an encoding."""
    if connection.vendor != "postgresql":
        return True
    connection.ensure_connection()
    return bool(connection.connection.info.parameter_status("server_encoding") != "SQL_ASCII")


def decoded(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        return [decoded(element) for element in value]
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        return NotUtf8(bytes(value).decode(errors="backslashreplace"))


class _KnownAs:
    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()  # type: ignore[misc]
        return name, self.known_as, args, kwargs  # type: ignore[attr-defined]


class _AsItIs(_KnownAs):
    def select_format(self, compiler: Any, sql: str, params: Any) -> Any:
        return (sql if has_encoding(compiler.connection) else self._as_bytes(sql)), params

    def _as_bytes(self, sql: str) -> str:
        return f"convert_to({sql}, 'SQL_ASCII')"

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return decoded(value)


class TextField(_AsItIs, models.TextField):  # type: ignore[type-arg]
    known_as = "django.db.models.TextField"


class CharField(_AsItIs, models.CharField):  # type: ignore[type-arg]
    known_as = "django.db.models.CharField"


class _Array(ArrayField):  # type: ignore[type-arg]
    known_as = "django.contrib.postgres.fields.ArrayField"

    def check(self, **kwargs: Any) -> list[Any]:
        """Skip a check of Django 6.1, which requires its PostgreSQL app in INSTALLED_APPS. Arrays do not need that
        app."""
        return [found for found in super().check(**kwargs) if found.id != "postgres.E005"]


class NumbersField(_KnownAs, _Array):
    pass


class BinariesField(_KnownAs, _Array):
    pass


class TextsField(_AsItIs, _Array):
    def _as_bytes(self, sql: str) -> str:
        each = f"unnest({sql}) WITH ORDINALITY AS each(t, n)"
        return f"(SELECT coalesce(array_agg(convert_to(t, 'SQL_ASCII') ORDER BY n), '{{}}') FROM {each})"


class _Unescaped(json.JSONEncoder):
    def __init__(self, **given: Any) -> None:
        super().__init__(**{**given, "ensure_ascii": False})


class JSONField(models.JSONField):
    """JSON without escapes: a database without an encoding rejects escapes of characters that are not ASCII."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.encoder = _Unescaped

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        del kwargs["encoder"]
        return name, "django.db.models.JSONField", args, kwargs
