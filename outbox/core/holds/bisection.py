"""Which record made Kafka reject a whole batch, found by sending less and less, in order. Pure.

A rejected batch has at least one cause; delivery reports say among which records it is, and not always which it is.
Halves of these suspects are tried from the front, because order allows no other: a half that goes through clears its
records, a half that is refused holds the cause. With n suspects that costs at most ceil(log2(n)) + 2 further
transactions, until the cause has been refused alone; a second cause in the same batch costs as many again. Other
records between the suspects travel with them, and become suspects only with a batch that is refused.

Where something tells which record it is likely to be, as the size does when one is too large, what stands before it
goes first, and then it goes alone: two transactions, of which one is refused. A wrong guess costs one more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bisection:
    """The suspects that are left; none: nothing is being looked for."""

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
        """These records were refused together: one of them is to blame, and those suspected before are not known to
        be. A single record is the cause, which explains all rejections so far: the search is over."""
        return Bisection(frozenset(ids), likely) if len(ids) > 1 else Bisection()

    def among(self, ids: Collection[int]) -> Bisection:
        """Only these records can be sent now. A suspect that is held or gone must not keep transactions small."""
        return Bisection(self.suspects.intersection(ids), self.likely) if self.suspects else self

    def cleared(self, ids: Iterable[int]) -> Bisection:
        """These records were delivered, or are held for good: none of them is looked for."""
        return Bisection(self.suspects.difference(ids), self.likely) if self.suspects else self
