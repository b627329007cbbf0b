"""Secrets of a configuration: they are known by the names of properties, and removed from every text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

HIDDEN = "***"
_SECRET_NAME = re.compile(
    r"password|passwd|secret|token|credential|jaas|assertion|oauthbearer\.config|basic\.auth|(^|[._])pem$|private|"
    r"(^|[._])key([._]|$)",
    re.IGNORECASE,
)
_NO_SECRET = frozenset({"ssl.key.location", "ssl.keystore.location", "sasl.kerberos.keytab"})
_SHORT = 4  # a shorter value would occur in many ordinary words


def is_secret(name: str) -> bool:
    return name not in _NO_SECRET and bool(_SECRET_NAME.search(name))


def warning_of(flag: str, names: Iterable[str], instead: str) -> str:
    """Return a warning about secrets on the command line."""
    return (
        f"{flag} holds {', '.join(names)}: every user of this machine can read it in the list of processes. {instead}"
    )


def shown(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties without their secrets, for printing."""
    return {name: _shown(name, value) for name, value in sorted(properties.items())}


def _shown(name: str, value: Any) -> Any:
    if is_secret(name):
        return HIDDEN
    if callable(value):
        return "(callable)"
    return value if isinstance(value, str | int | float | bool | None) else str(value)


class Redactor:
    """Removes the secrets of these mappings from any text, for instance from a server's error."""

    def __init__(self, *mappings: Mapping[str, Any]) -> None:
        values = sorted({value for mapping in mappings for value in _secrets(mapping)}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, values))) if values else None

    def __call__(self, text: str) -> str:
        return self._pattern.sub(HIDDEN, text) if self._pattern is not None else text

    def all(self, found: Any) -> Any:
        """Do the same for every text inside dicts and lists."""
        if isinstance(found, str):
            return self(found)
        if isinstance(found, Mapping):
            return {name: self.all(value) for name, value in found.items()}
        if isinstance(found, Iterable):
            return [self.all(value) for value in found]
        return found


def _secrets(mapping: Mapping[str, Any]) -> Iterator[str]:
    for name, value in mapping.items():
        if is_secret(name) and isinstance(value, str) and len(value) >= _SHORT:
            yield value
