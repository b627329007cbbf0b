"""The options of the source `outbox`: from strings to a typed object. It reports all mistakes at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from outbox.exceptions import OutboxError


class WrongOptions(OutboxError):
    """Options of the source. It reports all mistakes at once."""


@dataclass(frozen=True)
class Options:
    url: str
    table: str = "outbox"
    slices: int = 4
    max_records: int = 50_000
    statement_timeout: float = 30.0
    resend: bool = False
    owner: str = ""
    """The name of the driver in the tables. A unique part is added."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        names = {field.name.replace("_", ""): field for field in fields(cls)}
        lowered = {name.lower(): value for name, value in given.items()}
        wrong = [f"{name}: unknown" for name in lowered if name not in names]
        found: dict[str, Any] = {}
        for name, field in names.items():
            if name in lowered:
                try:
                    found[field.name] = _PARSERS[str(field.type)](lowered[name])
                except ValueError as error:
                    wrong.append(f"{name}={lowered[name]!r}: {error}")
        if not found.get("url"):
            wrong.append('url is missing: set it, for instance to "postgresql://user@host/database"')
        if wrong:
            known = "url, table, slices, maxRecords, statementTimeout, resend, owner"
            raise WrongOptions(
                f"The source outbox refuses these options: {'; '.join(wrong)}. The options are: {known}."
            )
        return cls(**found)


def _positive(text: str) -> int:
    number = int(text) if text.isdigit() else 0
    if not number:
        raise ValueError("set a whole number above 0")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ValueError("set seconds above 0")
    return number


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError('set "true" or "false"')
    return text.lower() == "true"


_PARSERS: dict[str, Callable[[str], Any]] = {"str": str, "int": _positive, "float": _seconds, "bool": _truth}
