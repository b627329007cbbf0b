"""What journals ask of stores and of PostgreSQL. The simulation has its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from outbox.core.journal.values import Conditions, JournalState, Placed, Staged, StageRow


class WriterPort(Protocol):
    """Of one object. Each call raises `StoreFailed`."""

    def write(self, block: bytes) -> None: ...

    def finish(self) -> None:
        """Everything is written: from now on `read` gives what the store has."""

    def read(self, start: int, length: int) -> bytes:
        """Shorter at the end, empty behind it."""

    def seal(self) -> None:
        """The object is durable and has its name."""

    def abort(self) -> None:
        """Leave nothing behind, as far as that is possible."""


class StorePort(Protocol):
    """Each call raises `StoreFailed`."""

    def create(self, path: str) -> WriterPort: ...

    def read(self, path: str, start: int, length: int) -> bytes:
        """Shorter at the end of the object, empty behind it. Raises `ObjectMissing`."""

    def put(self, path: str, data: bytes) -> bool:
        """A small object as a whole, durable. False: there is one already, which stays."""

    def get(self, path: str) -> bytes:
        """A small object as a whole. Raises `ObjectMissing`."""

    def list(self, prefix: str) -> Iterable[str]:
        """Paths of objects that begin so, in their order, and of those whose upload has not ended."""

    def delete(self, path: str) -> None:
        """Does nothing when it is gone."""


class TablePort(Protocol):
    """Statements outside of the caller's transaction; each is committed when it returns."""

    def state(self, journal: str) -> JournalState | None: ...

    def open(self, append: str, journal: str, stores: Sequence[str]) -> str:
        """Write the stage row. The day of the append, as the database has it: YYYY/MM/DD."""

    def extend(self, append: str) -> bool:
        """The stage is still in use. False: it has expired."""

    def at(self, journal: str, offset: int) -> tuple[Placed | None, int]:
        """The fragment at the offset or the first one behind it, and the head."""

    def placed(self, append: str) -> Sequence[Placed]:
        """The fragments of a committed append, in their order."""


class CommitPort(Protocol):
    """A statement in the caller's transaction."""

    def place(self, staged: Staged, conditions: Conditions) -> int | None:
        """How many fragments were inserted; 0: the append was committed before. None: its stage has expired."""


class KeeperPort(Protocol):
    """What the keeper asks; each call is a transaction, but for `expired`."""

    def journals(self) -> Sequence[JournalState]: ...

    def expire(self, age_s: float, but: Sequence[str]) -> StageRow | None:
        """Of the stages that are older and that no transaction uses, the oldest but for these: from now on it cannot
        be committed. None: there is none."""

    def forget(self, append: str) -> None:
        """The objects of an expired stage are removed, and now its row."""

    def unindexed(self, limit: int) -> Sequence[tuple[str, Placed]]:
        """Fragments of which nobody has made sure that their index objects are there, with their journals."""

    def indexed(self, journal: str, begins: Sequence[int]) -> None: ...

    def suspect(self, journal: str, reason: str) -> None: ...

    def lacking(self, known: Sequence[str], limit: int) -> Sequence[tuple[JournalState, Placed]]:
        """Fragments with fewer replicas than their journal wants on these stores, or in fewer zones."""

    def unscrubbed(self, age_s: float, limit: int) -> Sequence[tuple[JournalState, Placed]]:
        """Fragments that were not read for so long, the longest first."""

    def scrubbed(self, journal: str, begin: int, replicas: Sequence[str], zones: int) -> None:
        """These have it, and no other store counts any more."""

    def prune(self, journal: str) -> int:
        """Appends older than the retention become stages that are expired; how many."""

    def known(self, journal: str, appends: Sequence[str]) -> Mapping[str, Mapping[int, Sequence[str]] | None]:
        """The replicas of each part of those of these appends that are committed; None for one that is staged."""

    def vacant(self, journal: str, begins: Sequence[int]) -> Sequence[int]:
        """Those of these offsets at which no fragment begins."""
