"""What a relay writes of a delivery when its lease ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from outbox.core.relay.turns import Delivery

REJECTED, FAILED, POISON = "rejected", "failed", "poison"
"""Why a delivery is dead, as the table spells it."""
POISON_LEASES_MIN = 5
"""A relay that is killed by hand ends other deliveries' leases too; so few of them in a row mean nothing."""


class Settle(Enum):
    DELIVERED = "the row is deleted"
    RETRY = "the row waits for its next attempt"
    DEAD = "the row stays for an operator"
    RETURNED = "the row is as before the lease"


@dataclass(frozen=True, slots=True)
class Settlement:
    """It takes effect only if the row still has the token of the lease."""

    delivery: Delivery
    settle: Settle
    is_charged: bool = False
    """The message has one attempt less."""
    pause_s: float = 0.0
    error: str = ""
    reason: str = ""
    """DEAD: one of the three above."""
    blocks_key: bool = False
    """DEAD: the later deliveries of its key wait."""


@dataclass(frozen=True, slots=True)
class Refund:
    """An attempt that is given back: the destination was unavailable already when it was charged.

    It takes effect only if the row was not leased again since.
    """

    id: int
    token: str


def is_poison(delivery: Delivery, attempts: int) -> bool:
    """Whether it has ended so many relays that it is not sent any more; `attempts` are those of its schedule."""
    return delivery.leases > max(POISON_LEASES_MIN, attempts)
