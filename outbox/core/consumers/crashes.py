"""Finds the message that ends its process: by a native crash, by `sys.exit`, by a function that hangs. Pure.

A process that dies cannot say why. The table has the owner of each partition, and whether it ended cleanly. If an
owner died before it had moved the position, its successor handles the next messages one by one, and records which one
it begins. A message that was begun alone in two deaths is poison: it is held until an operator decides. In normal
operation nothing is recorded for a message or a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

DEATHS = 2
CAREFUL_MIN = 120
"""Messages that are handled one by one, at least. Those that were fetched take turns with held ones, of which a
transaction takes up to 50."""
RELEASED = -1
"""In the place of an offset: held messages were tried, so one of them may have ended the process, although the position
has moved."""
_HELD = -1
"""Held messages are below it: by the ids of their rows, in the place of an offset."""
SUSPECT_MAX = 1_000
"""So many more at most, until a suspect comes."""


def mark_of(id_: int) -> int:
    """In the place of the offset of a held message, by the id of its row."""
    return _HELD - id_


def named(mark: int | None) -> str | None:
    """For people."""
    return f"held-{_HELD - mark}" if mark is not None and mark < _HELD else mark if mark is None else str(mark)


@dataclass(frozen=True, slots=True)
class PartitionOwner:
    """As the table has it."""

    owner: str
    is_clean: bool
    next: int
    """The position when it took over."""
    begun: int | None = None
    """The offset of the message that it handled alone, or `mark_of` a held one, or `RELEASED`."""
    suspect: int | None = None
    """Of the deaths before."""
    deaths: int = 0
    is_alive: bool = False
    """It is still connected to PostgreSQL: it has lost the partition and did not die."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What the new owner concludes."""

    is_careful: bool = False
    suspect: int | None = None
    deaths: int = 0
    poison: int | None = None


NO_SUSPICION = Suspicion()


def after(found: PartitionOwner | None, owner: str, position: int) -> Suspicion:
    """Suspects remain between two deaths, also if a partition goes through the hands of owners that live."""
    if found is None:
        return Suspicion()
    if found.deaths >= DEATHS:  # no row says so yet
        return Suspicion(True, found.suspect, found.deaths, poison=found.suspect)
    if found.is_clean or found.is_alive or found.owner == owner:
        return Suspicion(found.deaths > 0, found.suspect, found.deaths)
    if found.begun is None or found.begun == RELEASED:
        is_careful = found.deaths > 0 or found.begun == RELEASED or found.next == position
        return Suspicion(is_careful, found.suspect, found.deaths)
    deaths = found.deaths + 1 if found.begun == found.suspect else 1
    if deaths >= DEATHS:
        return Suspicion(True, found.begun, deaths, poison=found.begun)
    return Suspicion(True, found.begun, deaths)


def stopped(found: Suspicion) -> Suspicion:
    """What is written when the partition stops at poison: who starts the consumer again has the message tried once
    more."""
    return Suspicion(True, found.suspect, DEATHS - 1)


class Caution:
    """Of one partition: messages are handled one by one, each recorded before it is begun."""

    def __init__(self, messages: int = 0, suspect: int | None = None) -> None:
        """At least so many, and until the suspect has passed."""
        self._left, self._suspect = messages, suspect
        self.recorded: int | None = None
        """The offset that the table has."""

    @property
    def is_careful(self) -> bool:
        # The suspect may never come: an operator may have discarded it.
        return self._left > 0 or (self._suspect is not None and self._left > -SUSPECT_MAX)

    @property
    def suspects(self) -> bool:
        """Whether the table has a message that may end the process."""
        return self.is_careful and self.recorded is not None and self.recorded != RELEASED

    def record(self, offset: int | None) -> None:
        """None: the table has none any more."""
        self.recorded = offset

    def clears(self, offset: int) -> bool:
        """Whether nothing is suspected any more when this message has passed."""
        later = Caution(self._left, self._suspect)
        later.passed(offset)
        return offset == self._suspect or not later.is_careful

    def passed(self, offset: int) -> None:
        """A message, whatever became of it."""
        if self.is_careful:
            self._left, self.recorded = self._left - 1, None
        if offset == self._suspect:
            self._suspect = None
