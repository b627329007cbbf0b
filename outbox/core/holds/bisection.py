"""Finds the record for which Kafka rejected a whole batch, by sending smaller and smaller batches in order. Pure.

At least one record is the cause of a rejected batch. Delivery reports say which records are suspects, but not always
which one is the cause. The lane sends the first half of the suspects, because order allows no other half. If Kafka
accepts that half, its records are cleared; if Kafka rejects it, the cause is among them. With n suspects Kafka has
rejected the cause alone after at most ceil(log2(n)) + 2 further transactions. A second cause in the same batch costs as
many again. Other records between the suspects are sent with them, and become suspects only with a rejected batch.

Sometimes one record is likely to be the cause, for example by its size when one is too large. Then the lane first sends
the records before it, and then that record alone: two transactions, of which Kafka rejects one. A wrong guess costs one
more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bisection:
    """The suspects that are left; none: there is no search."""

    suspects: frozenset[int] = frozenset()
    likely: int | None = None
    """Which of them is tried before halves are."""

    @property
    def is_searching(self) -> bool:
        return bool(self.suspects)

    def take(self, ids: Sequence[int]) -> int:
        """How many of these records, from the front, the next transaction may hold: up to half of the suspects; what
        stands before the last suspect goes first, so that it is tried alone."""
        if self.likely in self.suspects and self.likely in ids:
            return ids.index(self.likely) or 1
        places = [place for place, id_ in enumerate(ids) if id_ in self.suspects] if self.suspects else []
        if not places:
            return len(ids)
        if len(places) == 1:
            return places[0] or 1
        return places[len(places) // 2 - 1] + 1

    def refused(self, ids: Collection[int], likely: int | None = None) -> Bisection:
        """Kafka rejected these records together, so one of them is a cause; of earlier suspects that is not known any
        more. A single record is the cause and explains all rejections so far: the search is over."""
        return Bisection(frozenset(ids), likely) if len(ids) > 1 else Bisection()

    def among(self, ids: Collection[int]) -> Bisection:
        """Only these records can be sent now. A suspect that is held or gone must not keep transactions small."""
        return Bisection(self.suspects.intersection(ids), self.likely) if self.suspects else self

    def cleared(self, ids: Iterable[int]) -> Bisection:
        """These records were delivered, or are held: none of them is a suspect any more."""
        return Bisection(self.suspects.difference(ids), self.likely) if self.suspects else self
