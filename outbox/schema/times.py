"""The range of times that Python can represent."""

from datetime import UTC, datetime

KNOWN_FROM, KNOWN_BEFORE = datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
"""Between these times, Python and Spark have a date in every time zone."""
