"""A call that takes too long cannot be ended from outside: its process ends, with an exit code of its own."""

OVERRUN = 7
"""The exit code."""


def is_overrun(took_s: float, limit_s: float) -> bool:
    """`took_s`: for how long the call has been running."""
    return took_s >= limit_s
