"""The name under which a key is remembered: the key, or a digest of it when it is long."""

from __future__ import annotations

from hashlib import md5

LONG_KEY = 10_000  # bytes


def held_key(topic: str, key: str) -> str:
    """The digest is that of the table of holds, in its column `unit`. Hundreds of keys of a hundred megabytes would not
    fit into the memory."""
    if len(key) <= LONG_KEY // 4:
        return key
    encoded = key.encode(errors="surrogateescape")
    if len(encoded) <= LONG_KEY:
        return key
    return md5(
        f"key {len(topic)} {topic} ".encode(errors="surrogateescape") + encoded, usedforsecurity=False
    ).hexdigest()
