"""What the parts of a journal hand to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

BLOCK_BYTES = 1 << 20
"""A reader checks one block at a time, and gives out none of it before."""
DIGEST_BYTES = 32
FRAGMENT_BYTES = 1 << 30
"""An append that is longer becomes several fragments."""


class Cause(StrEnum):
    """Why an append is refused. The values are the SQLSTATEs that the trigger raises."""

    UNKNOWN = "OBJ01"
    READ_ONLY = "OBJ02"
    SUSPECT = "OBJ03"
    WRONG_OFFSET = "OBJ04"
    REGISTERS = "OBJ05"
    NO_CONTENT = "OBJ06"
    TOO_FEW_STORES = "OBJ07"
    EXPIRED = "OBJ08"


@dataclass(frozen=True, slots=True)
class AppendRefusal:
    cause: Cause
    text: str
    """What was seen, the limit, and the remedy."""


@dataclass(frozen=True, slots=True)
class Replication:
    """How many stores must have a fragment, and which may."""

    replicas: int
    zones: Mapping[str, str]
    """Store → its zone."""


@dataclass(frozen=True, slots=True)
class JournalState:
    """The row of a journal."""

    name: str
    head: int = 0
    chain: bytes = b""
    registers: Mapping[str, str] = field(default_factory=dict)
    replicas: int = 1
    stores: tuple[str, ...] = ()
    fragment_bytes: int = FRAGMENT_BYTES
    is_read_only: bool = False
    suspect: str = ""
    """Why nothing may be appended until an operator has set the head; empty: nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What an append asks of its journal, and changes in it, when it is committed."""

    check: Mapping[str, str | None] = field(default_factory=dict)
    """Register → its value; None: it must be absent."""
    set: Mapping[str, str] = field(default_factory=dict)
    drop: Sequence[str] = ()
    offset: int | None = None
    """Where the append must begin."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a store says of the object that it has, after it has read it again."""

    length: int
    blocks: bytes
    """The digests of its blocks, one after the other."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """One object of an append, and the stores that have it."""

    part: int
    path: str
    length: int
    sha256: bytes
    blocks: bytes
    replicas: tuple[str, ...]
    zones: int
    """Of the replicas."""


@dataclass(frozen=True, slots=True)
class Staged:
    """An append whose bytes are on the stores, and that is not committed."""

    append: str
    journal: str
    fragments: tuple[Fragment, ...]

    @property
    def length(self) -> int:
        return sum(fragment.length for fragment in self.fragments)


@dataclass(frozen=True, slots=True)
class Placed:
    """A fragment that is committed, at its offsets."""

    append: str
    fragment: Fragment
    begin: int
    end: int
    chain: bytes

    @property
    def is_gap(self) -> bool:
        """An operator has set the head beyond the last byte: nothing was ever here."""
        return not self.fragment.path


class StoreFailed(Exception):
    """A store did not do what it was asked; the text says why."""


class ObjectMissing(StoreFailed):
    """The store does not have the object."""


@dataclass(frozen=True, slots=True)
class StageRow:
    """The objects of an append that is not committed, or of one that is removed."""

    append: str
    journal: str
    day: str
    stores: tuple[str, ...]
    begins: tuple[int, ...] = ()
    """Of fragments that were removed: their index objects go too."""
