"""The findings of a check: one value per question, and the result of all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    SKIPPED = "skipped"
    """Not checked, because an earlier check failed."""


@dataclass(frozen=True, slots=True)
class Finding:
    subject: str
    level: Level
    text: str
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "level": str(self.level)}


def sentence(clause: str) -> str:
    """A clause with a capital letter and a full stop."""
    return f"{clause[0].upper()}{clause[1:].removesuffix('.')}." if clause else ""


def ok(subject: str, text: str) -> Finding:
    return Finding(subject, Level.OK, text)


def warning(subject: str, text: str, remedy: str) -> Finding:
    return Finding(subject, Level.WARNING, text, remedy)


def error(subject: str, text: str, remedy: str) -> Finding:
    return Finding(subject, Level.ERROR, text, remedy)


def skipped(subject: str, text: str) -> Finding:
    return Finding(subject, Level.SKIPPED, text)


def overall(findings: Iterable[Finding]) -> Level:
    """The worst level. A finding is skipped only after an error, so skipped ones do not count."""
    levels = {finding.level for finding in findings}
    return next((level for level in (Level.ERROR, Level.WARNING) if level in levels), Level.OK)
