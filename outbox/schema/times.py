"""Which times Python has a date for."""

from datetime import UTC, datetime

KNOWN_FROM, KNOWN_BEFORE = datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
"""Between these Python and Spark have a date for every time, in every time zone."""
