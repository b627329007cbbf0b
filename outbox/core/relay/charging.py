"""Who pays for an attempt that failed: the message with one of its attempts, its destination, or neither. Pure.

The schedule of a message is finite, and an outage of the receiver may be longer. So the destination pays for a failure
that speaks of the destination, unless the destination has accepted another message shortly before or meanwhile: its
circuit opens, whatever the rate of messages is.

Even then the attempt may have met the beginning or the end of an outage. So the message pays only if it had failed
before, and the destination has accepted another message in between. An outage costs a message one attempt at most.
"""

from __future__ import annotations

from enum import Enum

from outbox.core.relay.results import AttemptCause
from outbox.core.relay.turns import NEVER

WINDOW_S = 30.0
"""For so long a success says that the destination works."""


class Payer(Enum):
    MESSAGE = "message"
    DESTINATION = "destination"
    """Its circuit opens, or stays open."""
    NEITHER = "neither"


def payer(
    cause: AttemptCause,
    *,
    is_closed: bool,
    now: float,
    began_at: float,
    failed_at: float,
    succeeded_at: float,
    success_began_at: float,
) -> Payer:
    """Of a failure. `is_closed`: the circuit; `failed_at`: when the message failed before; `succeeded_at`: when another
    delivery was accepted last; `success_began_at`: when the latest one that was accepted began.
    """
    if cause is AttemptCause.REJECTED:
        return Payer.MESSAGE
    if cause in (AttemptCause.GONE, AttemptCause.FORBIDDEN, AttemptCause.DELIVERED):
        return Payer.NEITHER
    if not is_closed:
        return Payer.DESTINATION
    if cause is AttemptCause.MESSAGE:
        return Payer.MESSAGE
    if succeeded_at <= min(began_at, now - WINDOW_S):
        return Payer.DESTINATION
    return Payer.MESSAGE if NEVER < failed_at < success_began_at else Payer.NEITHER
