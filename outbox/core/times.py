"""Times of records as PostgreSQL keeps them: microseconds since 2000 in 64 bits, so that whatever a table can hold has
a place, also what Python has no date for. Pure.

Writers may supply them. So a time of a record is compared with that of the same record, and with no clock.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

INFINITE = (1 << 63) - 1
"""'infinity'"""
NONE = -(1 << 63)
"""'-infinity', and what stands for NULL."""
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_created = itemgetter(7)


def time_of(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def is_finite(time: int) -> bool:
    return NONE < time < INFINITE


def newest(rows: Iterable[Sequence[Any]]) -> int:
    """The highest eighth column of rows, of which there is one at least."""
    highest: int = max(map(_created, rows))
    return highest
