"""The names of fragments and of index objects on stores, and how bytes become blocks and fragments.

An append has a folder of the day and a name of its own, so no two appends share an object. The index object of a
fragment is named by its begin alone: a store can have one for each offset, so two databases that differ are noticed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from hashlib import sha256

from outbox.core.journal.values import DIGEST_BYTES, Placed, Report

NAME_MAX = 200
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_FRAGMENT = re.compile(r"(?:.*/)?([0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})-(\d{4,})")
INDEX = ".index"
PARTS_MAX = 9_999


def is_name(text: str) -> bool:
    """Parts that begin with a dot are ours."""
    return len(text) <= NAME_MAX and _NAME.fullmatch(text) is not None


def folder_of(journal: str, day: str) -> str:
    """`day` is YYYY/MM/DD."""
    return f"{journal}/{day}/"


def prefix_of(journal: str, day: str, append: str) -> str:
    """Of all objects of an append."""
    return f"{folder_of(journal, day)}{append}-"


def path_of(journal: str, day: str, append: str, part: int) -> str:
    return f"{prefix_of(journal, day, append)}{part:04}"


def append_of(path: str) -> tuple[str, int] | None:
    """The append and the part of an object; None: it is none of ours."""
    found = _FRAGMENT.fullmatch(path)
    return None if found is None else (found[1], int(found[2]))


def index_path(journal: str, begin: int) -> str:
    return f"{journal}/{INDEX}/{begin:016x}"


def index_text(journal: str, placed: Placed) -> bytes:
    """The same for the same fragment, whoever writes it."""
    content = {
        "journal": journal,
        "append": placed.append,
        "part": placed.fragment.part,
        "path": placed.fragment.path,
        "begin": placed.begin,
        "end": placed.end,
        "sha256": placed.fragment.sha256.hex(),
        "chain": placed.chain.hex(),
    }
    return json.dumps(content, sort_keys=True).encode()


def index_end(text: bytes) -> int | None:
    """The end of the fragment of an index object; None: it is damaged."""
    try:
        found = json.loads(text)["end"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if type(found) is int else None


def index_begin(path: str) -> int | None:
    """None: it is no index object."""
    folder, _, name = path.rpartition("/")
    if not folder.endswith(f"/{INDEX}") or re.fullmatch(r"[0-9a-f]{16}", name) is None:
        return None
    return int(name, 16)


def cut(chunks: Iterable[bytes | bytearray | memoryview], block_bytes: int) -> Iterator[bytes]:
    """The same bytes in blocks; the last one may be shorter."""
    waiting = bytearray()
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        start = 0
        if waiting:
            start = min(block_bytes - len(waiting), len(view))
            waiting += view[:start]
            if len(waiting) == block_bytes:
                yield bytes(waiting)
                waiting = bytearray()
        while len(view) - start >= block_bytes:
            yield bytes(view[start : start + block_bytes])
            start += block_bytes
        waiting += view[start:]
    if waiting:
        yield bytes(waiting)


def digest(block: bytes) -> bytes:
    return sha256(block).digest()


class Content:
    """The hashes of one fragment while its blocks pass."""

    def __init__(self) -> None:
        self._whole = sha256()
        self._blocks = bytearray()
        self.length = 0

    def add(self, block: bytes) -> None:
        self._whole.update(block)
        self._blocks += digest(block)
        self.length += len(block)

    @property
    def sha256(self) -> bytes:
        return self._whole.digest()

    @property
    def report(self) -> Report:
        """What a store must say of its object."""
        return Report(self.length, bytes(self._blocks))


def is_intact(blocks: bytes, number: int, block: bytes) -> bool:
    """Whether the bytes that a store gave are those of this block."""
    return digest(block) == blocks[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]
