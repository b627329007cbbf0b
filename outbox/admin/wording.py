"""Numbers and times as people read them on the pages of the admin. Pure."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone


def number(value: float) -> str:
    return f"{value:,.0f}"


def counted(count: int, limit: int) -> str:
    """A count that ends at the limit; a plus sign says that there may be more."""
    return number(count) if count < limit else f"{number(limit)}+"


def rate(value: float) -> str:
    """Per second. A slow rate keeps a digit, so that it is not shown as 0."""
    if 0 < value < 0.1:
        return "<0.1/s"
    if value < 10:
        return f"{value:.1f}".removesuffix(".0") + "/s"
    return f"{value:,.0f}/s"


def duration(seconds: float) -> str:
    """In the two largest units that apply."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{max(0.0, seconds):.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def clock(at: datetime) -> str:
    """In the time zone of the project."""
    return timezone.localtime(at).strftime("%H:%M")


def moment(at: datetime) -> str:
    return timezone.localtime(at).strftime("%Y-%m-%d %H:%M:%S")


def plural(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def were(count: int, one: str) -> str:
    return f"{plural(count, one)} {'was' if count == 1 else 'were'}"


def ago(at: datetime, now: datetime) -> str:
    return f"{duration((now - at).total_seconds())} ago"
