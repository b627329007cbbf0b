"""Durations as Go writes them (``100ms``, ``1.5s``, ``1h30m``), in seconds."""

import re

_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # the micro sign
    "μs": 1_000,  # the Greek letter
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
# What a signed 64-bit count of nanoseconds holds, about 292 years.
_MAX_S = (2**63 - 1) / 1e9


def parse_duration(text: str) -> float:
    """Seconds; raises ValueError if the text is not a duration. A number needs its unit, except 0."""
    sign = -1 if text.startswith("-") else 1
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0.0
    total, at = 0.0, 0
    while at < len(rest) and (part := _PART.match(rest, at)):
        total += float(part[1]) * _NANOSECONDS[part[2]]
        at = part.end()
    if not rest or at < len(rest) or total / 1e9 > _MAX_S:
        raise ValueError(f"{text!r} is not a duration. Write a number with its unit, e.g. 100ms, 1.5s or 2m.")
    return sign * total / 1e9


def show_duration(seconds: float) -> str:
    """The shortest form with one unit: 0.0025 is ``2.5ms``."""
    nanoseconds = seconds * 1e9
    for unit in ("h", "m", "s", "ms", "us"):
        size = _NANOSECONDS[unit]
        if abs(nanoseconds) >= size and (unit in ("s", "ms", "us") or nanoseconds % size == 0):
            return f"{nanoseconds / size:g}{unit}"
    return f"{nanoseconds:g}ns" if nanoseconds else "0s"
