"""`Message`, the value that `stash_many` takes, and the one form of headers: a tuple of pairs of strings.

This module checks only their shape; ``outbox.messages.validation`` checks the contents.
"""

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from outbox.exceptions import InvalidMessage

Pair = tuple[str, str]
Headers = Mapping[str, str] | Iterable[Pair]


class _Short(reprlib.Repr):
    """Makes an excerpt of any object for an error's text. It never raises."""

    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:  # Python writes no number of more than 4,300 digits
            return f"<int of {x.bit_length():,} bits>"


_short = _Short()
_short.maxstring = _short.maxother = 60
shown = _short.repr


@dataclass(frozen=True, slots=True)
class Message:
    """One message to stash; the fields mean what the arguments of `stash` mean.

    Headers are copied into a tuple of pairs, so a message does not change after it was made.
    """

    topic: str
    value: Any = None
    _: KW_ONLY
    key: str = ""
    headers: Headers | None = None
    message_id: str | None = None
    correlation_id: str | None = None

    def __post_init__(self) -> None:
        if self.headers is not None:
            object.__setattr__(self, "headers", as_pairs(self.headers))


def as_pairs(headers: Any) -> tuple[Pair, ...]:
    """Convert headers into pairs of strings, or raise `InvalidMessage`."""
    try:
        items = headers.items() if isinstance(headers, Mapping) else headers
        if isinstance(items, str | bytes):
            raise TypeError
        iterator = iter(items)
    except TypeError:
        raise InvalidMessage(
            f"headers: {shown(headers)} is {_kind(headers)}. Pass a mapping or a list of (name, value) pairs."
        ) from None
    pairs = tuple(iterator)  # outside the try: an error in the caller's generator belongs to the caller
    for pair in pairs:
        if type(pair) is not tuple or len(pair) != 2 or type(pair[0]) is not str or type(pair[1]) is not str:
            return tuple(map(_as_pair, pairs))
        if not pair[0]:
            raise _no_name(pair[1])
    return pairs


def _as_pair(pair: Any) -> Pair:
    """Check one pair slowly and explain its error. Also accepts lists as pairs and subclasses of str."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InvalidMessage(f"headers: {shown(pair)} is not a pair. Pass (name, value), both strings.")
    name, value = pair
    if not isinstance(name, str):
        raise InvalidMessage(f"headers: the name {shown(name)} is {_kind(name)}, not str. Pass a string.")
    if not isinstance(value, str):
        raise InvalidMessage(
            f"headers: the value of {shown(name)} is {shown(value)}, {_kind(value)}, not str. {_remedy(value)}"
        )
    if not name:
        raise _no_name(value)
    return str.__str__(name), str.__str__(value)


def _no_name(value: str) -> InvalidMessage:
    return InvalidMessage(f"headers: the name of the header with the value {shown(value)} is empty. Pass a name.")


def _remedy(value: object) -> str:
    if value is None:
        return 'The table keeps no null header: pass "" or leave the header out.'
    if isinstance(value, bytes | bytearray | memoryview):
        return "The table keeps header values as text: pass text (e.g. Base64), or put the bytes into the value."
    return "Pass str(...) of it."


def _kind(value: object) -> str:
    return type(value).__name__
