"""What a key is called where many of them are remembered: as long as it is short, by itself."""

from __future__ import annotations

from hashlib import md5

LONG_KEY = 10_000  # bytes


def held_key(topic: str, key: str) -> str:
    """A long key goes by the digest that the table of holds keeps of topic and key, in its column `unit`: hundreds of
    keys of a hundred megabytes would not fit into the memory."""
    if len(key) <= LONG_KEY // 4:
        return key
    encoded = key.encode(errors="surrogateescape")
    if len(encoded) <= LONG_KEY:
        return key
    return md5(
        f"key {len(topic)} {topic} ".encode(errors="surrogateescape") + encoded, usedforsecurity=False
    ).hexdigest()
