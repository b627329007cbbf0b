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

# Without ensure_ascii the text is shorter, and the validation sees a lone surrogate, which an escape would hide.
# NaN and infinities are not JSON, and most consumers would fail on them long after the writer's commit.
_encoder = DjangoJSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json(value: Any) -> str:
    """Compact JSON, with Django's encoder for dates, decimals, UUIDs and lazy texts."""
    return _encoder.encode(value)


@lru_cache(maxsize=8)
def resolve(path: str) -> Serializer:
    """Import the function that a dotted path names."""
    try:
        serializer = import_string(path)
    except ImportError as error:
        raise ImproperlyConfigured(
            f'OUTBOX["SERIALIZER"] is {path!r}, which cannot be imported: {error}. '
            'Set the path of a function (value) -> str | bytes, e.g. "outbox.serializers.json".'
        ) from error
    if not callable(serializer):
        raise ImproperlyConfigured(
            f'OUTBOX["SERIALIZER"] is {path!r}, which is not callable. Set the path of a function.'
        )
    return serializer  # type: ignore[no-any-return]
