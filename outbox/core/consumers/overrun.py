"""A function that takes too long cannot be ended from outside: its process ends, with an exit code of its own."""

OVERRUN = 7
"""The exit code."""


def is_overrun(called_s: float, timeout_s: float) -> bool:
    """`called_s`: for how long the function has been running; 0: it is not."""
    return called_s >= timeout_s
