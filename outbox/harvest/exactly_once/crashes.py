"""The watch of one lane for a record that ends the process which sends it: `core.holds.crashes` says what the traces
mean.

It belongs to the lane's thread. The traces are rows, which the purges' thread writes and reads; a statement that is
only told need not succeed. One lane of the process at a time sends carefully: the others wait for the careful turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from outbox.core.holds import crashes
from outbox.core.holds.crashes import CrashNote, CrashReport
from outbox.edges.kafka.exactly_once.failures import BatchDropped
from outbox.failpoints import failpoint
from outbox.harvest.exactly_once.rounds.lanes import LaneState
from outbox.harvest.exactly_once.rounds.rounds import Rounds
from outbox.harvest.exactly_once.values import Batch, MayNotGoOn

logger = logging.getLogger("outbox.harvest")

T = TypeVar("T")


class CrashWatch:
    def __init__(
        self, lane: LaneState, rounds: Rounds, may_go_on: Callable[[], bool], may_start: Callable[[int], bool]
    ) -> None:
        """`may_go_on`: the lane is not to end; `may_start`: nor has the election taken it away."""
        self._lane, self._rounds, self._table = lane, rounds, rounds.database.holds
        self._may_go_on, self._may_start = may_go_on, may_start

    def take_care(self, *, is_first: bool) -> None:
        """Whether the owner before has died, and of which record; from now on this one's death would be noticed.
        `is_first`: this worker has not owned the lane before."""
        table, lane, owner, holds = self._table, self._lane.number, self._rounds.owner, self._lane.holds

        def look(connection: Any) -> tuple[crashes.Watch | None, crashes.Care]:
            found = table.watch(connection, lane)
            care, note = crashes.after(found, owner), crashes.note_of(found, owner)
            if note is CrashNote.OWNS:
                table.own(connection, lane, owner, care)
            elif note is CrashNote.BEGAN_NOTHING:
                table.start(connection, lane, owner, ())
            return found, care

        care: crashes.Care
        found, care = self._rounds.purges.ask(look, self._may_go_on)
        holds.be_careful(care.is_careful)
        if care.suspects:
            holds.suspect(care.suspects)
        report = crashes.report_of(found, care, is_first=is_first)
        if report is CrashReport.POISON:
            logger.error("poison_held lane=%d id=%d crashes=%d", lane, care.poison, care.crashes)
        elif report is CrashReport.UNCLEAN:
            logger.warning("unclean_takeover lane=%d crashes=%d suspects=%d", lane, care.crashes, len(care.suspects))

    def watched(self, batch: Batch, transact: Callable[[], T]) -> T:
        """After a crash it is written down before which records are sent, one lane of the process after the other."""
        holds, rounds = self._lane.holds, self._rounds
        if not holds.must_record:
            return transact()
        table, lane, owner = self._table, self._lane.number, rounds.owner
        while not rounds.careful_turn.acquire(timeout=0.05):
            if not self._may_go_on():
                raise BatchDropped("The lane ended before its careful turn.")
        try:
            holds.be_careful(True)
            rounds.purges.ask(lambda connection: table.start(connection, lane, owner, batch.ids), self._may_go_on)
            if not (self._may_go_on() and self._may_start(lane)):
                raise BatchDropped("The lane ended, or lost the trust of the election, before its careful turn.")
            failpoint("careful")
            result = transact()
            rounds.purges.tell(lambda connection: table.start(connection, lane, owner, ()))
            return result
        finally:
            rounds.careful_turn.release()

    def calm_down(self, delivered: int) -> None:
        """A batch of so many records was delivered: if none is suspected, nothing is counted any more."""
        table, lane, owner, holds = self._table, self._lane.number, self._rounds.owner, self._lane.holds
        if holds.may_calm_down(delivered):
            holds.be_careful(False)
            self._rounds.purges.tell(lambda connection: table.calm(connection, lane, owner))

    def leave(self, may_wait: Callable[[], bool]) -> None:
        """The owner ends well: its successor need not be careful. Raises `MayNotGoOn`."""
        if not may_wait():  # a successor in this process has the same name, and may own the lane by now
            raise MayNotGoOn("The lane has no time left for a clean release.")
        table, lane, owner = self._table, self._lane.number, self._rounds.owner
        self._rounds.purges.ask(lambda connection: table.leave(connection, lane, owner), may_wait)
