"""What was refused, by key: how often, and when it is tried again. Outlasts a remark."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

from outbox.core.at_least_once.values import KeyName, Limits
from outbox.core.holds.values import pause_s


@dataclass(frozen=True, slots=True)
class Rejection:
    id: int
    attempts: int
    until: float


class Rejections:
    __slots__ = ("_by_name", "_limits")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_name: dict[KeyName, Rejection] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def of(self, name: KeyName) -> Rejection | None:
        return self._by_name.get(name)

    def refused(self, id_: int, name: KeyName, now: float) -> Rejection:
        """Once more, if it was this record before."""
        before = self._by_name.get(name)
        attempts = before.attempts + 1 if before and before.id == id_ else 1
        low, high = self._limits.rejection_backoff_min_s, self._limits.rejection_backoff_max_s
        self._by_name[name] = Rejection(id_, attempts, now + pause_s(attempts, low, high))
        return self._by_name[name]

    def expect(self, id_: int, name: KeyName, attempts: int, until: float) -> None:
        """Of an earlier leader."""
        self._by_name.setdefault(name, Rejection(id_, attempts, until))

    def put_off(self, name: KeyName, until: float) -> None:
        if name in self._by_name:
            self._by_name[name] = replace(self._by_name[name], until=until)

    def delivered(self, name: KeyName, id_: int) -> None:
        """This record of the key, so the refused one too or those before it."""
        found = self._by_name.get(name)
        if found is not None and id_ >= found.id:
            del self._by_name[name]

    def gone(self, ids: Container[int]) -> list[KeyName]:
        """These records were deleted; the keys that they held back."""
        names = [name for name, rejection in self._by_name.items() if rejection.id in ids]
        for name in names:
            del self._by_name[name]
        return names

    def forget(self, now: float, names_here: Container[KeyName]) -> None:
        """The refused row was taken away, and its key is silent."""
        before = now - self._limits.rejection_backoff_max_s
        for name in [n for n, rejection in self._by_name.items() if rejection.until < before and n not in names_here]:
            del self._by_name[name]
