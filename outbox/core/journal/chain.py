"""The chained hash of a journal: 32 bytes that stand for all fragments up to an offset, in their order.

The trigger chains when it places a fragment, and each reader chains what it has read. Two that agree at an offset have
the same bytes before it. The trigger has the same formula as SQL: `schema/journals.py`.
"""

from __future__ import annotations

from hashlib import sha256


def genesis(journal: str) -> bytes:
    return sha256(journal.encode()).digest()


def chained(before: bytes, begin: int, end: int, content: bytes) -> bytes:
    """`content` is the sha256 of the fragment, of no bytes for a gap."""
    return sha256(before + begin.to_bytes(8, "big") + end.to_bytes(8, "big") + content).digest()
