"""Where a lane's transaction stands. Pure; the lane's thread owns it.

Two regions go on beside each other: how far the transaction is, and whether its records are told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from outbox.core.holds.book import Holds
from outbox.core.holds.hold import Name
from outbox.core.region import Transitions
from outbox.core.rows import Row, parts_of
from outbox.core.sizes import Sizes

_TURN_S = 0.25


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
    ACKNOWLEDGED = "no record is under way, and no report says that one has failed"
    WANTED = "the next attempt must tell the records apart"
    DELIVERED = "a batch is committed"
    FOUND_NOTHING_YET = "a batch is committed, and the record at fault is still looked for"


PROBING = Transitions(
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


class Commit(Enum):
    """How far the transaction is."""

    NONE = "none"
    """No transaction is in use, and of none it is in doubt whether it was committed."""
    OPEN = "open"
    """The transaction has begun. If nothing was sent in it, the next batch uses it."""
    IN_DOUBT = "in doubt"
    """A commit was begun, and whether it took effect is not known: only the ledger tells."""
    DONE = "done"
    """Committed, and the rounds know."""


class Step(Enum):
    BEGIN = "a transaction begins"
    COMMIT = "its commit begins"
    DELIVERED = "it was committed"
    DROP = "the producer is thrown away"
    SETTLED = "the ledger was asked what became of it"


COMMIT = Transitions(
    "commit",
    Commit.NONE,
    {
        (Commit.NONE, Step.BEGIN): Commit.OPEN,
        (Commit.DONE, Step.BEGIN): Commit.OPEN,
        (Commit.OPEN, Step.COMMIT): Commit.IN_DOUBT,
        (Commit.IN_DOUBT, Step.DELIVERED): Commit.DONE,
        (Commit.NONE, Step.DROP): Commit.NONE,
        (Commit.OPEN, Step.DROP): Commit.NONE,
        (Commit.IN_DOUBT, Step.DROP): Commit.IN_DOUBT,
        (Commit.DONE, Step.DROP): Commit.NONE,
        (Commit.NONE, Step.SETTLED): Commit.NONE,
        (Commit.IN_DOUBT, Step.SETTLED): Commit.NONE,
    },
)


class Producer(Enum):
    """Whether another transaction may begin with the lane's producer."""

    GOOD = "good"
    TROUBLED = "troubled"
    """A request may still be under way that would end a transaction of its."""
    REPEATED = "repeated"
    """It has sent requests that its log did not mention, so the log cannot be relied on."""


def judge(trouble: str, repeated: str) -> Producer:
    """By what the client's log (`trouble`) and its statistics (`repeated`) report; empty: nothing."""
    if repeated:
        return Producer.REPEATED
    return Producer.TROUBLED if trouble else Producer.GOOD


def tells_apart(probing: Probing) -> bool:
    """Each record has a report of its own."""
    return probing is not Probing.WHOLE


def is_announced(probing: Probing, *, has_records: bool) -> bool:
    """Whether a mark in the ledger says that an entry will follow. Not while records are told apart: what the ledger is
    refused would be blamed on the records."""
    return has_records and not tells_apart(probing)


def without_large(rows: Sequence[Row], sizes: Sizes, holds: Holds) -> tuple[list[Row], list[Row]]:
    """The rows to be sent, and the first of each key that is probably larger than its topic takes: among the others it
    would cost them their transaction, and the lane its producer. One that is tried now travels alone."""
    kept: list[Row] = []
    large: dict[Name, Row] = {}
    for row in rows:
        if large and holds.name_of(row) in large:
            continue
        if row[1] in sizes and sizes.exceeds(row[1], parts_of(row)) and not holds.is_tried(row):
            large[holds.name_of(row)] = row
        else:
            kept.append(row)
    return kept, [*large.values()]


def turn_s(*, has_records: bool, is_ending: bool) -> float:
    """For how long a lane waits for its turn to send."""
    return _TURN_S if has_records and not is_ending else 0.0


def objection(*, is_stopped: bool, is_flushed: bool, holds_lease: Callable[[], bool]) -> str:
    """Why a batch must not be committed whose records are all acknowledged; empty when it may. Whether the lease holds
    is asked last, when nothing else is in the way."""
    if is_stopped:
        return "The harvester could not purge the batch before this one."
    if not is_flushed:
        return "The purge of the batch before this one did not flush the rows that were read."
    if not holds_lease():
        return "The harvester could not renew its lease on the table in time, so another delivery mode may hold it."
    return ""
