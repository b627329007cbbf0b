"""Where a lane's transaction stands. Pure; the lane's thread owns it.

Two regions go on beside each other: how far the transaction is, and whether its records are told apart.
"""

from __future__ import annotations

from enum import Enum

from outbox.core.region import Table


class Probing(Enum):
    """Whether failed records are told apart, at some cost."""

    WHOLE = "whole"
    """A failure says only that something in the transaction failed."""
    PROBING = "probing"
    """Each record that fails has a report of its own."""
    ALL_ACKNOWLEDGED = "all acknowledged"
    """Each record of the batch, as was told apart: what fails now is the ledger's entry."""


class Probe(Enum):
    BEGUN = "a transaction begins"
    ACKNOWLEDGED = "every record is acknowledged"
    WANTED = "the next attempt must tell the records apart"
    DELIVERED = "a batch is committed"
    FOUND_NOTHING_YET = "a batch is committed, and the record at fault is still looked for"


PROBING = Table(
    "probing",
    Probing.WHOLE,
    {
        (Probing.WHOLE, Probe.BEGUN): Probing.WHOLE,
        (Probing.PROBING, Probe.BEGUN): Probing.PROBING,
        (Probing.ALL_ACKNOWLEDGED, Probe.BEGUN): Probing.PROBING,
        (Probing.WHOLE, Probe.ACKNOWLEDGED): Probing.WHOLE,
        (Probing.PROBING, Probe.ACKNOWLEDGED): Probing.ALL_ACKNOWLEDGED,
        (Probing.WHOLE, Probe.WANTED): Probing.PROBING,
        (Probing.PROBING, Probe.WANTED): Probing.PROBING,
        (Probing.ALL_ACKNOWLEDGED, Probe.WANTED): Probing.ALL_ACKNOWLEDGED,
        (Probing.WHOLE, Probe.DELIVERED): Probing.WHOLE,
        (Probing.ALL_ACKNOWLEDGED, Probe.DELIVERED): Probing.WHOLE,
        (Probing.WHOLE, Probe.FOUND_NOTHING_YET): Probing.PROBING,
        (Probing.ALL_ACKNOWLEDGED, Probe.FOUND_NOTHING_YET): Probing.PROBING,
    },
)
