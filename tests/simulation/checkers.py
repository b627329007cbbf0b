"""What ends a scenario."""

from __future__ import annotations


class Violation(AssertionError):
    """One of the promises was broken."""
