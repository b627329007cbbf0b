"""Which record made Kafka refuse a whole batch, found by sending less and less, in order. Pure.

A refused batch has at least one culprit, and nothing says which. Halves are tried from the front, because order allows
no other: a half that goes through clears its records, a half that is refused holds the culprit. A batch of n records
costs at most ceil(log2(n)) + 1 further transactions, until the culprit has been refused alone; a second culprit in the
same batch costs as many again. Records that turn up between the suspects, because their transaction committed late,
travel with them and become suspects only with a batch that is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bisection:
    """The suspects that are left; none: nothing is being looked for."""

    suspects: frozenset[int] = frozenset()

    @property
    def is_searching(self) -> bool:
        return bool(self.suspects)

    @property
    def size(self) -> int | None:
        """How many records the next transaction may hold; None: as many as it likes."""
        return max(1, len(self.suspects) // 2) if self.suspects else None

    def refused(self, ids: Collection[int]) -> Bisection:
        """A batch of these records was refused as a whole: one of them is to blame, and those before are not known to
        be. A single record is its own culprit, and is not looked for any longer."""
        return Bisection(frozenset(ids)) if len(ids) > 1 else self.cleared(ids)

    def among(self, ids: Collection[int]) -> Bisection:
        """Only these records can be sent now. A suspect that is held or gone must not keep transactions small."""
        return Bisection(self.suspects.intersection(ids)) if self.suspects else self

    def cleared(self, ids: Iterable[int]) -> Bisection:
        """These records were delivered, or are held for good: none of them is looked for."""
        return Bisection(self.suspects.difference(ids)) if self.suspects else self
