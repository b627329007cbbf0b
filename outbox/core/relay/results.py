"""What the result of an attempt speaks of: the message, its destination, or ourselves. Pure.

A receiver that is unavailable says nothing about a message, so the message keeps its attempts. A receiver that answers
speaks of the message, unless its answer is one of those that proxies and overloaded servers give to every message.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from outbox.core.relay.turns import Delivery


class AttemptCause(Enum):
    DELIVERED = "the receiver has accepted the message"
    MESSAGE = "the receiver failed with this message"
    DESTINATION = "the receiver is unavailable or overloaded"
    REJECTED = "the receiver will never accept this message"
    GONE = "the receiver wants no more messages"
    FORBIDDEN = "a rule of this installation forbids the address of the receiver"


class Transport(Enum):
    """An attempt that ended without an HTTP status."""

    RESOLVE = "the name of the host was not resolved"
    CONNECT = "no connection was made"
    TLS = "TLS was not agreed on"
    TIMEOUT = "the receiver did not answer in time"
    BROKEN = "the connection ended before the answer"
    FORBIDDEN = "the address of the host is not allowed"


_OF_TRANSPORT = {
    Transport.RESOLVE: AttemptCause.DESTINATION,
    Transport.CONNECT: AttemptCause.DESTINATION,
    Transport.TLS: AttemptCause.DESTINATION,
    Transport.TIMEOUT: AttemptCause.DESTINATION,
    # The receiver had the message, and may have crashed on it.
    Transport.BROKEN: AttemptCause.MESSAGE,
    Transport.FORBIDDEN: AttemptCause.FORBIDDEN,
}
_OF_STATUS = {
    408: AttemptCause.DESTINATION,
    410: AttemptCause.GONE,
    425: AttemptCause.MESSAGE,
    429: AttemptCause.DESTINATION,
    502: AttemptCause.DESTINATION,
    503: AttemptCause.DESTINATION,
    504: AttemptCause.DESTINATION,
}


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """Of one attempt."""

    status: int | None = None
    transport: Transport | None = None
    retry_after_s: float | None = None
    """What the receiver asks for."""
    text: str = ""
    """For people: the client's words, or the beginning of the answer's body."""

    @property
    def cause(self) -> AttemptCause:
        if self.transport is not None:
            return _OF_TRANSPORT[self.transport]
        assert self.status is not None, "an attempt ends with a status or without one"
        return cause_of(self.status)

    @property
    def error(self) -> str:
        """For people."""
        what = self.transport.value if self.transport else f"HTTP status {self.status}"
        return f"{what}: {self.text}" if self.text else what


class Answered(NamedTuple):
    """An attempt that has ended."""

    delivery: Delivery
    result: AttemptResult


def cause_of(status: int) -> AttemptCause:
    """A redirect is not followed, because the body and its signature would go to a host that nobody has named: the
    messages wait until an operator changes the URL."""
    if status in _OF_STATUS:
        return _OF_STATUS[status]
    if 200 <= status < 300:
        return AttemptCause.DELIVERED
    if 400 <= status < 500:
        return AttemptCause.REJECTED
    return AttemptCause.MESSAGE if status >= 500 else AttemptCause.DESTINATION
