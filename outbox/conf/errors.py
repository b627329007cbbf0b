"""The errors of wrong settings. Their texts contain no secret."""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.core.exceptions import ImproperlyConfigured


@dataclass(frozen=True)
class SettingError:
    """One wrong setting: its key, the value seen and the remedy."""

    key: str
    problem: str
    hint: str

    @property
    def text(self) -> str:
        return f'OUTBOX["{self.key}"] {self.problem}' if self.key else f"OUTBOX {self.problem}"

    def __str__(self) -> str:
        return f"{self.text} {self.hint}"


class ConfErrors(ImproperlyConfigured):
    """All errors of the OUTBOX settings."""

    def __init__(self, errors: list[SettingError]) -> None:
        self.errors = errors
        super().__init__("\n".join(str(error) for error in errors))


class WrongValue(Exception):
    """Raised by a parser: it does not know the key."""

    def __init__(self, problem: str, hint: str) -> None:
        self.problem, self.hint = problem, hint


def seen(value: Any) -> str:
    """Return a wrong value for an error's text, without parts that may be secret.

    A user who sets the wrong key often sets it to an address with a password, or to the properties of a client.
    """
    if isinstance(value, str):
        if "\n" in value or value.lstrip().startswith(("{", "[")):
            return "a text of several lines or of JSON"
        value = re.sub(r"=.*", "=***", re.sub(r"(^|://).*@", r"\1***@", value))
    elif isinstance(value, int) and not -(2**64) < value < 2**64:  # Python refuses to write the longest ones
        return "a number of more than 64 bits"
    elif not isinstance(value, int | float | timedelta | None):
        return f"a value of type {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
