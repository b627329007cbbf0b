"""Which record ends the process that sends it: a native crash, memory, an error that nobody foresaw. Pure.

A process that dies cannot say why. So whoever takes a lane over from an owner that ended without a clean release is
*careful*: it writes down which records it begins to send, and crosses them out when they are delivered. As soon as a
batch succeeds and nobody is suspected, nothing is counted any more: in health nothing is written at all.

When a careful owner dies too, the records that it had begun are the suspects: the next owner sends them in halves
(`bisection`). One that was begun alone in two deaths, one after the other, is the poison record and is held until an
operator decides; a single death may have any reason, as operators and machines kill too. Careful lanes of one process
take turns, so that no innocent batch stands started beside the poison record."""

from __future__ import annotations

from dataclasses import dataclass

CAREFUL_MAX = 500
"""Records of a careful batch, at most."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What the table tells of the owner before."""

    owner: str
    is_clean: bool
    crashes: int
    started: tuple[int, ...]
    """Of the batch that it had begun."""
    suspected: tuple[int, ...] = ()
    """Of the deaths before."""
    is_alive: bool = False
    """Still connected to the database: it lost the lane and not its life, so no record of it is suspected."""


@dataclass(frozen=True, slots=True)
class Care:
    """How a lane is to be begun."""

    is_careful: bool = False
    crashes: int = 0
    suspects: tuple[int, ...] = ()
    poison: int | None = None


def after(found: Watch | None, owner: str) -> Care:
    """What the owner that takes over now concludes. An owner that takes its own lane over again has not died; nor has
    one that was paused or cut off from Kafka, or that ended well. But none of them clears what was suspected before it
    has delivered a batch: between two deaths a lane may pass through several hands."""
    if found is None:
        return Care()
    if found.owner == owner and not found.is_clean:
        return Care(found.crashes > 0, found.crashes)
    if found.is_clean or found.is_alive:
        return Care(found.crashes > 0, found.crashes, found.suspected)
    if not found.started:  # such a death blames nobody, and clears nobody
        return Care(True, max(found.crashes, 1), found.suspected)
    if len(found.started) == 1 and found.started == found.suspected:
        return Care(True, found.crashes + 1, (), found.started[0])
    return Care(True, found.crashes + 1, found.started)
