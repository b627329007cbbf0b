"""Which records are probably larger than their topic takes, so that each of them need not be refused to find out. Pure.

A broker compares its limit with what it receives, which is compressed. So a record is weighed as zlib packs it: the
client's own codec gives a little more or less, and what it gives is found out where it matters, because a record that
is lighter than any refused one is sent with the others. The measure is the topic's limit where it could be asked for,
and the lightest record that was refused alone. It is forgotten when a record that exceeds it is taken.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

from outbox.core.rows import Row, parts_of

_ENVELOPE = 80  # bytes around a record that travels alone: the batch's head, lengths, attributes
_UTF8_MAX = 4  # bytes of a character

Part = str | bytes | None


class Sizes:
    """Of the topics of one lane."""

    def __init__(self, *, is_compressed: bool = True) -> None:
        self._is_compressed = is_compressed
        self._least: dict[str, int] = {}
        self._limits: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._least)

    def __contains__(self, topic: str) -> bool:
        """Whether a record of the topic may exceed anything."""
        return topic in self._least

    def limited(self, topic: str, limit: int) -> None:
        """The topic takes no more bytes at a time."""
        self._limits[topic] = limit
        self._lower(topic, limit + 1)

    def least_limit(self, topics: Iterable[str]) -> int | None:
        """Of those that are known."""
        return min((self._limits[topic] for topic in topics if topic in self._limits), default=None)

    def refused(self, topic: str, parts: Iterable[Part]) -> None:
        """A record was refused that travelled alone."""
        self._lower(topic, self._weight(parts))

    def taken(self, topic: str, parts: Iterable[Part]) -> None:
        if self.exceeds(topic, parts):
            del self._least[topic]

    def delivered(self, rows: Sequence[Row]) -> None:
        """In one transaction. Only a record that travelled alone, as one that was held does, shows what its topic
        takes."""
        if self._least and len(rows) == 1:
            self.taken(rows[0][1], parts_of(rows[0]))

    def exceeds(self, topic: str, parts: Iterable[Part]) -> bool:
        least = self._least.get(topic)
        if least is None:
            return False
        parts = tuple(parts)
        if _UTF8_MAX * sum(len(part or "") for part in parts) + _ENVELOPE < least:
            return False
        return self._weight(parts) >= least

    def _lower(self, topic: str, size: int) -> None:
        self._least[topic] = min(size, self._least.get(topic, size))

    def _weight(self, parts: Iterable[Part]) -> int:
        data = b"".join(
            part.encode(errors="surrogateescape") if isinstance(part, str) else part or b"" for part in parts
        )
        size = len(data)
        if self._is_compressed:
            size = min(size, len(zlib.compress(data, 1)))
        return _ENVELOPE + size
