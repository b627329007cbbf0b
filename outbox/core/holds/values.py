"""The values that pass between the table of holds and the code that decides about holds. Also two decisions that every
delivery mode shares: when the next attempt is, and when a record becomes a dead letter.

A note that a record was rejected is only for people, so it may be late or lost. To delete a record, or to promise that
it is left alone, must happen in the transaction that purges a batch: see `HoldActions`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from outbox.core import faults

REJECTED, POISON, PAUSED, EDITING = "rejected", "poison", "paused", "editing"
"""Why something is held, as the table of holds spells it."""
OF_RECORDS, BY_OPERATORS = (REJECTED, POISON), (PAUSED, EDITING)
SKIPPED = "skipped"
"""Why a record became a dead letter, beside REJECTED and POISON, as the table of dead letters spells it."""
RETRY, SKIP, DISCARD = "retry", "skip", "discard"
"""What operators ask for a held record, as the table of holds spells it."""
HISTORY_MAX = 20
TEXT_MAX = 2000
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.5, 60.0
_DOUBLED_MAX = 30
_CODE = re.compile(r"\b_?[A-Z][A-Z0-9_]+\b")


@dataclass(frozen=True, slots=True)
class HoldRow:
    """A hold, as the table shows it, and as a lane writes it there when Kafka has rejected a record."""

    id: int
    """0: not shown by the table yet."""
    topic: str
    key: str | None
    """None: the whole topic. A long key that the table shows is a digest."""
    lane: int | None = None
    of_lane: int | None = None
    """The only lane that the hold concerns; None: all of them."""
    record_id: int | None = None
    reason: str = REJECTED
    attempts: int = 0
    code: str = ""
    error: str = ""
    wanted: str = ""
    due_s: float | None = None
    """From now; None: not by itself."""
    confirmed_by: tuple[int, ...] = ()
    history: tuple[dict[str, Any], ...] = ()
    is_there: bool = True
    """The record at the head is still in the outbox. True also when the hold has no record."""
    head_lane: int | None = None
    """Of the record at the head of a whole topic, which every lane leaves alone."""

    @property
    def head(self) -> int:
        assert self.record_id is not None
        return self.record_id


@dataclass(slots=True)
class Writes:
    """News for the table, to be written as soon as possible."""

    placed: list[HoldRow] = field(default_factory=list)
    lifted: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.placed or self.lifted)


@dataclass(frozen=True, slots=True)
class DeadRecord:
    """A record that becomes a dead letter."""

    hold: HoldRow
    reason: str


@dataclass(frozen=True, slots=True)
class HoldActions:
    """What happens in the transaction that purges a batch: only there the lane is known to own the records.

    Kafka had committed the batch, so no later owner had fenced the producer. None of these records was part of that
    batch or of a later one. An owner that takes over afterwards reads the table as the purge has left it.
    """

    dead_records: tuple[DeadRecord, ...] = ()
    discarded: tuple[int, ...] = ()
    confirmed: tuple[int, ...] = ()
    """Ids of holds that the lane respects."""

    def __len__(self) -> int:
        return len(self.dead_records) + len(self.discarded) + len(self.confirmed)

    @property
    def heads(self) -> tuple[int, ...]:
        """The records that leave."""
        return (*(dead_record.hold.head for dead_record in self.dead_records), *self.discarded)


def rejected(record_id: int, topic: str, key: str | None, attempts: int, error: str, due_s: float) -> HoldRow:
    """A record was refused; without a key, its whole topic."""
    code = code_in(error)
    history = ({"code": code, "error": error},)
    return HoldRow(
        0, topic, key, record_id=record_id, attempts=attempts, code=code, error=error, due_s=due_s, history=history
    )


def code_in(error: str) -> str:
    """The client's name of the error, found in its text; empty when it has none."""
    return next((word for word in _CODE.findall(error) if word in faults.KINDS), "")


def pause_s(attempts: int, low: float = BACKOFF_MIN_S, high: float = BACKOFF_MAX_S) -> float:
    """After so many rejections, until the next attempt."""
    return min(high, low * float(2 ** min(max(0, attempts - 1), _DOUBLED_MAX)))


def is_given_up(attempts: int, attempts_max: int) -> bool:
    """After so many rejections the record becomes a dead letter; 0: never."""
    return 0 < attempts_max <= attempts


def fate_of(row: HoldRow, attempts_max: int) -> str:
    """Why the record becomes a dead letter according to the table, or DISCARD; empty: it does not leave."""
    if row.wanted:
        return {SKIP: SKIPPED, DISCARD: DISCARD}.get(row.wanted, "")
    return POISON if row.reason == POISON and attempts_max else ""
