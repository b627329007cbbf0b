"""What consumers promise, counted apart from them: by the database, when a transaction takes effect, and at the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.simulation.checkers import Violation


@dataclass(frozen=True)
class Written:
    """A message as it was produced."""

    uid: int
    key: str
    sequence: int
    """Of its key."""


class Effects:
    """Of one database. A copy of it is another database."""

    def __init__(self) -> None:
        self.handled: dict[int, None] = {}
        self._last: dict[str, int] = {}

    def copied(self) -> Effects:
        copy = Effects()
        copy.handled, copy._last = dict(self.handled), dict(self._last)
        return copy

    def add(self, message: Written) -> None:
        if message.uid in self.handled:
            raise Violation(f"the effect of {message} is there twice")
        if message.sequence <= self._last.get(message.key, -1):
            raise Violation(f"{message} was handled after a later message of its key ({self._last[message.key]})")
        self.handled[message.uid] = None
        self._last[message.key] = message.sequence

    def require(self, messages: Iterable[Written], left_out: Iterable[int]) -> None:
        missing = [message for message in messages if message.uid not in self.handled]
        missing = [message for message in missing if message.uid not in set(left_out)]
        if missing:
            raise Violation(f"{len(missing)} messages have no effect, e.g. {missing[:3]}")
