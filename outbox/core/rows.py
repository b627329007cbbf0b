"""A row of the outbox, as the cursor returns it: a tuple, from the read to the client of Kafka."""

from __future__ import annotations

from typing import Any

Row = tuple[Any, ...]
"""id, topic, key, value, header keys, header values, binary value, create_time as `core.times` has it, and the lane
where there are several."""


def parts_of(row: Row) -> list[str | bytes]:
    """All that makes a record large. The headers of a table of others may have elements that are NULL or arrays."""
    parts = (row[2], row[3], row[6], *(row[4] or ()), *(row[5] or ()))
    return [part for part in parts if isinstance(part, str | bytes)]


def size_of(row: Row) -> int:
    """Characters of its texts, or bytes."""
    return sum(map(len, parts_of(row)))
