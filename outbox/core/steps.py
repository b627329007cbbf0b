"""The identity of what one step consumed: the same after a crash, a rebalance or a replay."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Any


def step(owner: str, topic: str, partition: int, offset: int) -> str:
    """32 hexadecimal digits. `owner` names who consumes the message."""
    found = _prefix(owner, topic, partition).copy()
    found.update(offset.to_bytes(8, "big"))
    return str(found.hexdigest())


@lru_cache(maxsize=4096)
def _prefix(owner: str, topic: str, partition: int) -> Any:
    return blake2b(f"{len(owner)} {owner} {len(topic)} {topic} {partition} ".encode(), digest_size=16)
