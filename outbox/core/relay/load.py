"""What one relay has leased, of all its destinations. Pure.

Destinations take turns, so one with a long backlog does not delay the others. A delivery whose relay ended uncleanly
may have been the cause. A relay leases such suspects one at a time, so the next unclean end counts against one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outbox.core.relay.circuit import DestinationChange
from outbox.core.relay.destination import Destination, DestinationOptions
from outbox.core.relay.quotas import LEASED_MAX, Grant
from outbox.core.relay.results import AttemptResult
from outbox.core.relay.settlement import Refund, Settlement
from outbox.core.relay.turns import NEVER, Delivery

UNDER_WAY_MAX = 1_000


class RelayLoad:
    def __init__(self, options: Callable[[str], DestinationOptions], under_way_max: int = UNDER_WAY_MAX) -> None:
        """`options` of a destination by its name."""
        self._options, self._under_way_max = options, under_way_max
        self.destinations: dict[str, Destination] = {}
        self._active: dict[str, Destination] = {}
        """Those that may not be idle: of many thousands a few."""
        self._suspect: int | None = None
        self.is_stopping = False

    def destination(self, name: str) -> Destination:
        if name not in self.destinations:
            self.destinations[name] = Destination(self._options(name))
        self._active[name] = self.destinations[name]
        return self.destinations[name]

    @property
    def under_way(self) -> int:
        return sum(one.under_way for one in self._active.values())

    @property
    def held(self) -> int:
        return sum(one.held for one in self._active.values())

    # ---- leases

    def quotas(self, due: Sequence[str]) -> dict[str, int]:
        """Destinations that have something due → how many deliveries to lease of each; none that gets nothing."""
        left = 0 if self.is_stopping else LEASED_MAX
        found = {}
        for name in due:
            wanted = min(left, self.destination(name).quota())
            if wanted:
                found[name] = wanted
                left -= wanted
        return found

    @property
    def wants_suspect(self) -> bool:
        return self._suspect is None and not self.is_stopping

    def leased(self, name: str, deliveries: Sequence[Delivery], now: float, granted: Grant | None = None) -> None:
        suspects = [delivery for delivery in deliveries if delivery.is_suspect]
        assert len(suspects) <= int(self._suspect is None), "they are leased one by one"
        if suspects:
            self._suspect = suspects[0].id
        self.destination(name).leased(deliveries, now, granted)
        if self.is_stopping:
            self.stop()

    def stop(self) -> None:
        """Nothing more begins; what has not begun goes back."""
        self.is_stopping = True
        for one in self.destinations.values():
            one.give_back()

    def abandon(self) -> None:
        """What is under way goes back too, and will be sent once more."""
        for one in self.destinations.values():
            one.abandon()

    # ---- attempts

    def begin(self, now: float) -> list[Delivery]:
        """Those that may begin now; each destination gives one in its turn."""
        begun: list[Delivery] = []
        free = self._under_way_max - self.under_way
        self._active = {name: one for name, one in self._active.items() if not one.is_idle}
        names = list(self._active)
        while names and free > 0:
            names = names[:free]
            given = [(name, self._active[name].next(now)) for name in names]
            begun += [delivery for _, delivery in given if delivery is not None]
            free -= sum(delivery is not None for _, delivery in given)
            names = [name for name, delivery in given if delivery is not None]
        self._rotate()
        return begun

    def _rotate(self) -> None:
        """Whoever was first is last the next time."""
        if len(self._active) > 1:
            first = next(iter(self._active))
            self._active[first] = self._active.pop(first)

    def next_at(self) -> float | None:
        """When a rate limit lets the next delivery begin; None: nothing waits for that."""
        if self.under_way >= self._under_way_max:
            return None
        times = [one.next_at for one in self._active.values() if one.next_at != NEVER]
        return min(times, default=None)

    def answered(self, delivery: Delivery, result: AttemptResult, now: float, draw: float) -> None:
        self.destinations[delivery.destination].answered(delivery, result, now, draw)

    # ---- what is written

    def changes(self) -> list[tuple[Destination, str, DestinationChange]]:
        """The next one of each destination."""
        found = [(one, name, one.change) for name, one in self._active.items()]
        return [(one, name, change) for one, name, change in found if change is not None]

    def take_settlements(self) -> list[Settlement]:
        taken = [settlement for one in self._active.values() for settlement in one.take_settlements()]
        if any(settlement.delivery.id == self._suspect for settlement in taken):
            self._suspect = None
        return taken

    def take_refunds(self) -> list[Refund]:
        return [refund for one in self._active.values() for refund in one.take_refunds()]
