"""What a relay learns from the table. Pure."""

from __future__ import annotations

from typing import NamedTuple

from outbox.core.relay.circuit import DestinationRow


class DeliveriesUnavailable(Exception):
    """PostgreSQL did not answer, or the connection is lost. A statement under way may have taken effect or not."""


class Due(NamedTuple):
    """A destination of which something may be due."""

    name: str
    row: DestinationRow
    has_free: bool = True
    """A delivery without a key is due."""
    has_keys: bool = False
    """A delivery of an ordered key is due; an earlier one of its key may be in its way."""
    has_suspects: bool = False
    """A delivery is due that a relay had and did not settle."""
    next_s: float = 0.0
    """With a rate limit: until the next delivery may begin; negative if that time has passed."""
