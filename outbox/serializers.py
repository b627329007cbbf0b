"""Serializers: functions ``(value) -> str | bytes`` for values that are neither text, bytes nor None.

``OUTBOX["SERIALIZER"]`` names one by its dotted path; `json` is the default.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.serializers.json import DjangoJSONEncoder
from django.utils.module_loading import import_string

Serializer = Callable[[Any], str | bytes]

# Not ASCII only: shorter, and a lone surrogate stays visible to the validation instead of hiding in an escape.
# NaN and infinities are not JSON, and most consumers would fail on them long after the writer's commit.
_encoder = DjangoJSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json(value: Any) -> str:
    """Compact JSON, with Django's encoder for dates, decimals, UUIDs and lazy texts."""
    return _encoder.encode(value)


@lru_cache(maxsize=8)
def resolve(path: str) -> Serializer:
    """The function that a dotted path names."""
    try:
        serializer = import_string(path)
    except ImportError as error:
        raise ImproperlyConfigured(
            f'OUTBOX["SERIALIZER"] is {path!r}, which cannot be imported: {error}. '
            'Name a function (value) -> str | bytes, e.g. "outbox.serializers.json".'
        ) from error
    if not callable(serializer):
        raise ImproperlyConfigured(f'OUTBOX["SERIALIZER"] is {path!r}, which is not callable. Name a function.')
    return serializer  # type: ignore[no-any-return]
