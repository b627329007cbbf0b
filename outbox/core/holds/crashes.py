"""Finds the record that ends the process which sends it: by a native crash, by memory, by an unforeseen error. Pure.

A process that dies cannot say why. So an owner is *careful* when the one before it ended without a clean release: it
records which records it begins to send, and deletes that note when they are delivered. As soon as a batch with records
succeeds and there are no suspects, the owner is no longer careful. In normal operation nothing is recorded at all.

If a careful owner dies too, the records that it had begun to send are suspects, and the next owner sends them in halves
(`bisection`). A record is poison if it was sent alone in two deaths, one after the other; it is held until an operator
decides. A single death may have any cause, as operators and machines kill processes too. Careful lanes of one process
take turns, so that no innocent batch is recorded beside the poison record."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

CAREFUL_MAX = 500
"""Records of a careful batch, at most."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What the table says about the previous owner."""

    owner: str
    is_clean: bool
    crashes: int
    started: tuple[int, ...]
    """Of the batch that it had begun."""
    suspected: tuple[int, ...] = ()
    """Of the deaths before."""
    is_alive: bool = False
    """It is still connected to the database: it has lost the lane but did not die, so none of its records is a
    suspect."""


@dataclass(frozen=True, slots=True)
class Care:
    """How a lane is to be begun."""

    is_careful: bool = False
    crashes: int = 0
    suspects: tuple[int, ...] = ()
    poison: int | None = None


def after(found: Watch | None, owner: str) -> Care:
    """What the new owner concludes. An owner that takes its own lane over again has not died, nor has one that was
    paused or cut off from Kafka, or that ended cleanly. But suspects stay suspects until a batch is delivered: between
    two deaths a lane may have several owners."""
    if found is None:
        return Care()
    if found.owner == owner and not found.is_clean:
        return Care(found.crashes > 0, found.crashes)
    if found.is_clean or found.is_alive:
        return Care(found.crashes > 0, found.crashes, found.suspected)
    if not found.started:  # such a death makes no record a suspect, and clears none
        return Care(True, max(found.crashes, 1), found.suspected)
    if len(found.started) == 1 and found.started == found.suspected:
        return Care(True, found.crashes + 1, (), found.started[0])
    return Care(True, found.crashes + 1, found.started)


class CrashNote(Enum):
    """What the table is to say about the new owner, before it sends anything."""

    OWNS = "it owns the lane, and this is how it begins"
    BEGAN_NOTHING = "it sends none of the records that it had begun to send"
    NONE = "the table says so already"


def note_of(found: Watch | None, owner: str) -> CrashNote:
    if found is None or found.owner != owner or found.is_clean:
        return CrashNote.OWNS
    return CrashNote.BEGAN_NOTHING if found.started else CrashNote.NONE


class CrashReport(Enum):
    """What is to be logged when a lane is begun."""

    POISON = "a record is held because two harvesters ended while they sent it alone"
    UNCLEAN = "the owner before has ended without a clean release"
    NONE = "nothing"


def report_of(found: Watch | None, care: Care, *, is_first: bool) -> CrashReport:
    """Of an orderly end there is nothing to report, careful or not. `is_first`: this worker has not owned the lane
    before."""
    if care.poison is not None:
        return CrashReport.POISON
    is_unclean = found is not None and not found.is_clean
    return CrashReport.UNCLEAN if is_unclean and care.crashes and is_first else CrashReport.NONE
