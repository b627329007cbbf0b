"""Which record ends the process that sends it: a native crash, memory, an error that nobody foresaw. Pure.

A process that dies cannot say why. So whoever takes a lane over from an owner that left no farewell is *careful*: it
writes down which records it begins to send, and crosses them out when they are delivered. As soon as a batch succeeds
and nobody is suspected, nothing is counted any more: in health nothing is written at all.

When a careful owner dies too, the records that it had begun are the suspects: the next owner sends them in halves
(`bisection`). One that stands there alone, after at least `CRASHES` deaths, is the culprit and is held until an
operator decides. Careful lanes of one process take turns, so that no innocent batch stands started beside the culprit.
"""

from __future__ import annotations

from dataclasses import dataclass

CRASHES = 2
"""So many deaths before a record is blamed: the first one may have had any reason."""
CAREFUL_MAX = 500
"""Records of a careful batch, at most."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What the table tells of the owner before."""

    owner: str
    is_clean: bool
    crashes: int
    started: tuple[int, ...]
    is_alive: bool = False
    """Still connected to the database: it lost the lane and not its life, so no record of it is suspected."""


@dataclass(frozen=True, slots=True)
class Care:
    """How a lane is to be begun."""

    is_careful: bool = False
    crashes: int = 0
    suspects: tuple[int, ...] = ()
    culprit: int | None = None

    @property
    def counted(self) -> int:
        """To be remembered: with a culprit found the count begins anew, though the search goes on."""
        return 1 if self.culprit is not None else self.crashes


def after(found: Watch | None, owner: str) -> Care:
    """What the owner that takes over now concludes. An owner that takes its own lane over again has not died; nor has
    one that was paused or cut off from Kafka."""
    if found is None or found.is_clean:
        return Care()
    if found.owner == owner or found.is_alive:
        return Care(found.crashes > 0, found.crashes)
    # Deaths that befell no batch count once: they blame nobody.
    crashes = found.crashes + 1 if found.started else max(found.crashes, 1)
    if len(found.started) == 1 and crashes >= CRASHES:
        return Care(True, crashes, (), found.started[0])
    return Care(True, crashes, found.started)
