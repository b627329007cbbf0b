"""In which order the leased deliveries of a destination begin. Pure.

Deliveries without a key begin in the order of the lease. Of an ordered key one delivery is under way at a time, and a
failure ends its run: the later ones of that lease go back, so the next lease begins with the one that failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

NEVER = float("-inf")


class DeliveryContent(NamedTuple):
    """What is sent of a delivery. Nothing here reads it."""

    message_id: str
    event: str
    payload: bytes
    content_type: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message for one destination, as a lease has it."""

    id: int
    destination: str
    token: str
    """Of the lease. Every later statement names it."""
    until: float = 0.0
    """When the lease ends; counted from when it was asked for, so that PostgreSQL ends it later."""
    key: str = ""
    """Of an ordered key; empty: no order."""
    attempts: int = 0
    """Those that were charged to it."""
    leases: int = 1
    """That did not end with a settlement, with this one. Above 1: a relay that had it ended uncleanly."""
    not_before: float = NEVER
    """With a rate limit: its share of the time that all relays have."""
    leased_at: float = 0.0
    failed_s: float | None = None
    """How long before the lease its last attempt has failed; None: it has not failed yet."""
    content: DeliveryContent | None = field(default=None, repr=False)

    @property
    def failed_at(self) -> float:
        return NEVER if self.failed_s is None else self.leased_at - self.failed_s

    @property
    def is_suspect(self) -> bool:
        """It may have ended the process of a relay."""
        return self.leases > 1


class Turns:
    """Of one destination in one relay."""

    def __init__(self) -> None:
        self._free: deque[Delivery] = deque()
        """May begin."""
        self._behind: dict[str, deque[Delivery]] = {}
        """Ordered keys that have a delivery that may begin or is under way → the deliveries behind it."""

    def __len__(self) -> int:
        return len(self._free) + sum(len(behind) for behind in self._behind.values())

    def add(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            if delivery.key in self._behind:
                self._behind[delivery.key].append(delivery)
            else:
                if delivery.key:
                    self._behind[delivery.key] = deque()
                self._free.append(delivery)

    @property
    def first(self) -> Delivery | None:
        """The one that `next` gives."""
        return self._free[0] if self._free else None

    def next(self) -> Delivery | None:
        """The caller begins it, or returns it by `ended`."""
        return self._free.popleft() if self._free else None

    def ended(self, delivery: Delivery, *, is_through: bool) -> list[Delivery]:
        """`is_through`: the receiver has it, or the key goes on without it. The deliveries that go back with it."""
        if not delivery.key:
            return []
        behind = self._behind.pop(delivery.key)
        if not is_through:
            return list(behind)
        if behind:
            self._free.append(behind.popleft())
            self._behind[delivery.key] = behind
        return []

    def clear(self) -> list[Delivery]:
        """All that have not begun. Nothing stays behind a delivery that is under way."""
        not_begun = {delivery.key for delivery in self._free if delivery.key}
        left = [*self._free, *(delivery for behind in self._behind.values() for delivery in behind)]
        self._free.clear()
        self._behind = {key: deque() for key in self._behind if key not in not_begun}
        return left
