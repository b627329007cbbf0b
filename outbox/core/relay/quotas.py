"""How many deliveries of a destination a relay leases at a time. Pure.

A relay leases as many as it can begin within a quarter of the lease. The leases of more would end in its memory; with
fewer it would wait for the table. All relays share a rate limit: each destination has one time, before which its next
delivery does not begin. A lease moves that time on, by the number of its deliveries.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.25
"""Of the lease."""
LEASED_MAX = 1_000
"""By one statement, from one destination."""
_ALPHA = 0.2  # of the newest duration in the average


class Durations:
    """How long attempts take, on average; recent ones count more."""

    def __init__(self) -> None:
        self.average_s: float | None = None

    def add(self, seconds: float) -> None:
        seconds = max(0.0, seconds)
        self.average_s = seconds if self.average_s is None else self.average_s + _ALPHA * (seconds - self.average_s)


def quota(concurrency: int, lease_s: float, average_s: float | None, held: int, maximum: int = LEASED_MAX) -> int:
    """`held`: deliveries that this relay has leased and not settled. Before the first answer of a destination, a relay
    leases as many as begin at once."""
    assert concurrency > 0
    most = concurrency
    if average_s is not None:
        most = max(concurrency, int(min(maximum, concurrency * SHARE * lease_s / max(average_s, 1e-6))))
    return max(0, min(most, maximum) - held)


@dataclass(frozen=True, slots=True)
class Grant:
    """Of a destination with a rate limit: so many deliveries, the first after `first_s`, then one each `spacing_s`."""

    count: int
    first_s: float
    spacing_s: float

    @property
    def moves_on_s(self) -> float:
        """By how much the shared time moves on."""
        return self.count * self.spacing_s


def grant(wanted: int, rate: float, next_s: float, lease_s: float) -> Grant:
    """`rate`: deliveries in a second; `next_s`: seconds until the shared time, negative if it has passed.

    A delivery that cannot begin within a quarter of the lease is not leased. Time that nobody used is lost.
    """
    assert rate > 0
    first_s = max(0.0, next_s)
    begins = int((SHARE * lease_s - first_s) * rate) + 1 if first_s <= SHARE * lease_s else 0
    return Grant(min(wanted, begins), first_s, 1.0 / rate)
