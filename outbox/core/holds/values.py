"""The values that pass between the table of holds and whoever decides what is held. No decisions here but the names of
reasons and the pauses between attempts, which are the same in every delivery mode.

What is written while a record is only refused is news for people and may be late or lost. What deletes a record, or
promises that it is left alone, belongs into the transaction that purges a batch: see `Errands`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from outbox.core import faults

REJECTED, POISON, PAUSED, EDITING = "parked", "quarantined", "paused", "editing"
"""Why something is held, as the table of holds spells it."""
OF_RECORDS, BY_OPERATORS = (REJECTED, POISON), (PAUSED, EDITING)
REFUSED, CRASHED, SKIPPED = "refused", "crashed", "skipped"
"""Why a record became a dead letter, as the table of dead letters spells it."""
RETRY, SKIP, DISCARD = "retry", "skip", "discard"
"""What operators want of a record that is held, as the table of holds spells it."""
HISTORY_MAX = 20
TEXT_MAX = 2000
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.5, 60.0
_DOUBLED_MAX = 30
_CODE = re.compile(r"\b_?[A-Z][A-Z0-9_]+\b")


@dataclass(frozen=True, slots=True)
class HoldRow:
    """One row as a lane sees it."""

    id: int
    topic: str
    key: str | None
    lane: int | None
    of_lane: int | None
    """The only lane that the hold concerns; None: all of them."""
    record_id: int | None
    reason: str
    attempts: int
    code: str
    error: str
    wanted: str
    due_s: float | None
    """From now; None: not by itself."""
    confirmed_by: tuple[int, ...]
    history: tuple[dict[str, Any], ...]
    is_there: bool
    """The record at the head is still in the outbox, or there is none."""
    head_lane: int | None = None
    """Of the record at the head of a whole topic, which every lane leaves alone."""


@dataclass(frozen=True, slots=True)
class Park:
    """A record, or its whole topic, was refused."""

    record_id: int
    topic: str
    key: str | None
    """None: the whole topic. Else the record's key is held, which the table knows better: this may be a digest."""
    attempts: int
    code: str
    error: str
    next_try_s: float | None


@dataclass(slots=True)
class Writes:
    """News for the table, to be written as soon as possible."""

    parks: list[Park] = field(default_factory=list)
    lifted: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.parks or self.lifted)


@dataclass(frozen=True, slots=True)
class Burial:
    """A record that becomes a dead letter."""

    record_id: int
    reason: str
    attempts: int
    code: str
    error: str
    history: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Errands:
    """What is done with the purge of a batch, in its transaction: only then the lane is known to own the records.

    The batch was committed in Kafka by a producer that nobody had fenced, none of these records was part of it or of
    a later one, and whoever takes over afterwards reads the table as the purge has left it.
    """

    burials: tuple[Burial, ...] = ()
    discarded: tuple[int, ...] = ()
    confirmed: tuple[int, ...] = ()
    """Ids of holds that the lane respects."""

    def __len__(self) -> int:
        return len(self.burials) + len(self.discarded) + len(self.confirmed)

    @property
    def heads(self) -> tuple[int, ...]:
        """The records that leave."""
        return (*(burial.record_id for burial in self.burials), *self.discarded)


def code_in(error: str) -> str:
    """The client's name of the error, found in its text; empty when it has none."""
    return next((word for word in _CODE.findall(error) if word in faults.KINDS), "")


def pause_s(attempts: int, low: float = BACKOFF_MIN_S, high: float = BACKOFF_MAX_S) -> float:
    """After so many refusals, until the next attempt."""
    return min(high, low * float(2 ** min(max(0, attempts - 1), _DOUBLED_MAX)))


def is_given_up(attempts: int, attempts_max: int) -> bool:
    """After so many refusals the record becomes a dead letter; 0: never."""
    return 0 < attempts_max <= attempts
