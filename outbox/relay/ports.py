"""What a relay asks of PostgreSQL and of the HTTP client: one statement or one call each.

Production has `edges.postgres.relay` below these; the simulation of the tests has a table and receivers of its own.
Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from outbox.core.relay.circuit import DestinationChange
from outbox.core.relay.results import Answered
from outbox.core.relay.settlement import Refund, Settlement
from outbox.core.relay.table import Due
from outbox.core.relay.turns import Delivery


class DeliveriesPort(Protocol):
    """Rows of `<TABLE>_delivery` and `<TABLE>_destination`, on a connection of one thread. Every call is a transaction.

    All times are those of PostgreSQL's clock. Every call may raise `DeliveriesUnavailable`; the next call connects
    again.
    """

    def due(self, after: str, limit: int) -> tuple[Sequence[Due], str]:
        """Destinations behind this name, in the order of names, with an unleased delivery that is due. And the name
        behind which the next call goes on; empty: it begins again."""
        ...

    def lease(self, token: str, lease_s: float, wanted: Mapping[str, int]) -> list[Delivery]:
        """Of each destination so many at most, the longest due first. Only deliveries without a key, and such as no
        relay has had and not settled."""
        ...

    def lease_keys(self, token: str, lease_s: float, wanted: Mapping[str, int]) -> list[Delivery]:
        """So too, deliveries of ordered keys. A key is leased only with its first delivery, and then with those that
        follow directly; of each key in the order of ids."""
        ...

    def lease_suspect(self, token: str, lease_s: float, destinations: Sequence[str]) -> list[Delivery]:
        """One delivery, or none, of those that a relay had and did not settle."""
        ...

    def expire(self) -> int:
        """Takes back leases that have ended. How many deliveries."""
        ...

    def settle(self, settlements: Sequence[Settlement]) -> set[int]:
        """Those that took effect, by id: the row still had the token."""
        ...

    def refund(self, refunds: Sequence[Refund]) -> int:
        """Of rows that nobody has leased since. How many."""
        ...

    def change(self, destination: str, change: DestinationChange) -> bool:
        """Whether it took effect: the row still had the version."""
        ...

    def reserve(self, destination: str, count: int, spacing_s: float) -> float:
        """Moves the time of a rate limit on by so many deliveries. Until when the first of them waits, in seconds."""
        ...

    def close(self) -> None: ...


class SenderPort(Protocol):
    """The HTTP client. One thread calls all but `wake`."""

    def start(self, delivery: Delivery, deadline_s: float) -> None:
        """Begins an attempt. It ends within the deadline, whatever the receiver does."""
        ...

    def wait(self, timeout_s: float) -> list[Answered]:
        """Attempts that have ended; none when the time is over, or after `wake`."""
        ...

    def wake(self) -> None:
        """Any thread may call it."""
        ...

    def abandon(self) -> None:
        """Ends all attempts without a result."""
        ...


class RelayServers(Protocol):
    """What the threads of a relay connect with."""

    def deliveries(self) -> DeliveriesPort: ...

    def sender(self) -> SenderPort: ...
