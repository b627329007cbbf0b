"""Whether a destination may be sent to. Pure.

All relays share one row per destination. A relay writes it on transitions only, and only if the row still has the
version that the relay has read: of several relays, one writes. So one relay gets the probe of an open circuit.
Times are those of PostgreSQL; a relay knows them as seconds from the moment at which it has read the row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from outbox.core.region import Transitions
from outbox.core.relay.schedule import limited

PAUSE_MIN_S = 1.0
PAUSE_MAX_S = 60.0
DISABLE_AFTER_S = 5 * 86_400.0
_DOUBLINGS_MAX = 30


class Access(Enum):
    """As the table spells it."""

    CLOSED = "closed"
    """The destination works, as far as is known."""
    OPEN = "open"
    """It is unavailable; no relay sends to it before the pause is over."""
    PROBING = "probing"
    """One relay sends one delivery, which decides."""
    DISABLED = "disabled"
    """No relay sends to it until an operator enables it."""


class AccessEvent(Enum):
    FAILED = "a delivery did not get through"
    SUCCEEDED = "a delivery was accepted"
    PROBED = "a relay has taken the probe"
    RETURNED = "the probe found no delivery to send"
    DISABLED = "there will be no success without an operator"
    ENABLED = "an operator has enabled it"


ACCESS = Transitions(
    "access to a destination",
    Access.CLOSED,
    {
        (Access.CLOSED, AccessEvent.FAILED): Access.OPEN,
        (Access.CLOSED, AccessEvent.DISABLED): Access.DISABLED,
        (Access.OPEN, AccessEvent.SUCCEEDED): Access.CLOSED,
        (Access.OPEN, AccessEvent.PROBED): Access.PROBING,
        (Access.OPEN, AccessEvent.DISABLED): Access.DISABLED,
        (Access.PROBING, AccessEvent.SUCCEEDED): Access.CLOSED,
        (Access.PROBING, AccessEvent.FAILED): Access.OPEN,
        (Access.PROBING, AccessEvent.RETURNED): Access.OPEN,
        # Its relay has died.
        (Access.PROBING, AccessEvent.PROBED): Access.PROBING,
        (Access.PROBING, AccessEvent.DISABLED): Access.DISABLED,
        (Access.DISABLED, AccessEvent.ENABLED): Access.CLOSED,
    },
)


@dataclass(frozen=True, slots=True)
class DestinationRow:
    """The row of a destination."""

    version: int = 0
    """0: there is no row yet."""
    access: Access = Access.CLOSED
    wait_s: float = 0.0
    """OPEN: until a probe may begin. PROBING: until another relay may take the probe."""
    failures: int = 0
    """Probes that failed in a row, and what opened the circuit."""
    failing_s: float = 0.0
    """Since the circuit was opened."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DestinationChange:
    """What a relay writes if the row still has the version `expected`."""

    expected: int
    after: DestinationRow
    event: AccessEvent
    needs_end_of_wait: bool = False
    """PostgreSQL also compares the end of the wait with its own clock."""


def pause_s(failures: int, draw: float) -> float:
    """Before a probe, after so many failures in a row. The jitter takes half of it at most."""
    longest_s = min(PAUSE_MAX_S, PAUSE_MIN_S * 2.0 ** min(max(0, failures - 1), _DOUBLINGS_MAX))
    return longest_s * (0.5 + 0.5 * draw)


def failed(before: DestinationRow, draw: float, reason: str, retry_after_s: float | None = None) -> DestinationChange:
    """The circuit opens, stays open for longer, or the destination is disabled: nothing but failures for days."""
    if before.access is not Access.CLOSED and before.failing_s >= DISABLE_AFTER_S:
        days = before.failing_s / 86_400
        return disabled(before, f"no delivery was accepted for {days:.0f} days; the last error: {reason}")
    failures = before.failures + 1
    wait_s = max(pause_s(failures, draw), limited(retry_after_s))
    return _change(before, AccessEvent.FAILED, wait_s=wait_s, failures=failures, reason=reason)


def succeeded(before: DestinationRow) -> DestinationChange:
    return _change(before, AccessEvent.SUCCEEDED, wait_s=0.0, failures=0, failing_s=0.0, reason="")


def probed(before: DestinationRow, lease_s: float) -> DestinationChange:
    """For as long as the lease of the delivery that is sent, so a relay that dies does not keep the probe."""
    return replace(_change(before, AccessEvent.PROBED, wait_s=lease_s), needs_end_of_wait=True)


def returned(before: DestinationRow) -> DestinationChange:
    return _change(before, AccessEvent.RETURNED, wait_s=0.0)


def disabled(before: DestinationRow, reason: str) -> DestinationChange:
    return _change(before, AccessEvent.DISABLED, wait_s=0.0, reason=reason)


def enabled(before: DestinationRow) -> DestinationChange:
    return _change(before, AccessEvent.ENABLED, wait_s=0.0, failures=0, failing_s=0.0, reason="")


def expects(before: DestinationRow, event: AccessEvent) -> bool:
    return ACCESS.expects(before.access, event)


def _change(before: DestinationRow, event: AccessEvent, **fields: object) -> DestinationChange:
    access = ACCESS.after(before.access, event)
    after = replace(before, version=before.version + 1, access=access, **fields)  # type: ignore[arg-type]
    return DestinationChange(before.version, after, event)
