"""Who pays for an attempt that failed: the message with one of its attempts, its destination, or neither. Pure.

The schedule of a message is finite, and an outage of the receiver may be longer. So an attempt that speaks of the
destination is charged to the message only if the destination has accepted another message shortly before or meanwhile.
Else the destination pays: its circuit opens, and the message keeps all its attempts, whatever the rate of messages is.
"""

from __future__ import annotations

from enum import Enum

from outbox.core.relay.results import AttemptCause

WINDOW_S = 30.0
"""For so long a success says that the destination works."""


class Payer(Enum):
    MESSAGE = "message"
    DESTINATION = "destination"
    """Its circuit opens, or stays open."""
    NEITHER = "neither"


def payer(
    cause: AttemptCause, *, is_closed: bool, now: float, began_at: float, succeeded_at: float, is_last: bool
) -> Payer:
    """Of a failure. `is_closed`: the circuit; `succeeded_at`: when another delivery was accepted last; `is_last`: the
    message has no more attempts after this one.

    A message dies of its last attempt only if another one was accepted while it was under way. The receiver may have
    become unavailable since an earlier success.
    """
    if cause is AttemptCause.REJECTED:
        return Payer.MESSAGE
    if cause in (AttemptCause.GONE, AttemptCause.FORBIDDEN, AttemptCause.DELIVERED):
        return Payer.NEITHER
    if not is_closed:
        return Payer.DESTINATION
    if cause is AttemptCause.MESSAGE:
        return Payer.MESSAGE
    if succeeded_at > began_at:
        return Payer.MESSAGE
    if succeeded_at <= now - WINDOW_S:
        return Payer.DESTINATION
    return Payer.NEITHER if is_last else Payer.MESSAGE
