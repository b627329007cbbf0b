"""Which stores an append tries: one that has failed is left out for a while, unless it is needed. Pure."""

from __future__ import annotations

from collections.abc import Collection

PAUSES_S = (1.0, 1.0, 10.0, 10.0, 100.0)


class StoreHealth:
    def __init__(self) -> None:
        self._failures: dict[str, int] = {}
        self._errors: dict[str, tuple[float, str]] = {}
        """Until when a store is left out, and why."""

    def failed(self, store: str, error: str, now: float, chance: float) -> None:
        """`chance` is from 0 to 1: processes do not come back all at once."""
        count = self._failures[store] = self._failures.get(store, 0) + 1
        pause_s = PAUSES_S[min(count, len(PAUSES_S)) - 1]
        self._errors[store] = (now + pause_s * (0.9 + 0.2 * chance), error)

    def worked(self, store: str) -> None:
        self._failures.pop(store, None)
        self._errors.pop(store, None)

    def errors(self, stores: Collection[str], now: float) -> dict[str, str]:
        """Stores that are left out now, and why."""
        found = {store: self._errors[store] for store in stores if store in self._errors}
        return {store: error for store, (until, error) in found.items() if now < until}
