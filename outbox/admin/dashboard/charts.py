"""Lines over the last hour as geometry for an SVG and as rows of a table. Pure: no clock, no database, no markup.

A plot is `WIDTH` × `HEIGHT` units, which the browser stretches to the width of the page; texts stand outside of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from math import floor, log10

WIDTH, HEIGHT = 1000.0, 100.0
GAP_S = 150.0  # samples come once a minute: a line over a longer gap would be invented


@dataclass(frozen=True, slots=True)
class Point:
    at: datetime
    value: float | None


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    style: str
    """Class of the line in the style sheet."""
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    style: str
    path: str
    area: str
    """The path closed down to the axis; empty for a line without a filled area."""
    last: str


@dataclass(frozen=True, slots=True)
class Tick:
    y: str
    """From the top, in units of the plot."""
    text_y: str
    """From the top, in percent."""
    text: str


@dataclass(frozen=True, slots=True)
class Column:
    """The text that the pointer shows over one sample."""

    x: str
    width: str
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    summary: str
    """For readers who do not see the lines."""
    lines: Sequence[Line]
    ticks: Sequence[Tick]
    columns: Sequence[Column]
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def is_empty(self) -> bool:
        return not any(line.path for line in self.lines)


def nice_top(highest: float) -> float:
    """The smallest of 1, 2, 4, 5, 8 times a power of ten that is not below `highest`: axes end at round numbers."""
    if highest <= 1:
        return 1.0
    power = 10.0 ** floor(log10(highest))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= highest)


def ticks(top: float, say: Callable[[float], str]) -> list[Tick]:
    parts = 4 if top >= 4 and top % 4 == 0 else 2 if top >= 2 else 1
    values = [top * part / parts for part in range(1, parts + 1)]
    return [Tick(_number(_y(value, top)), _number(_y(value, top) * 100 / HEIGHT), say(value)) for value in values]


def chart(
    title: str,
    series: Sequence[Series],
    now: datetime,
    window: timedelta,
    say: Callable[[float], str],
    say_time: Callable[[datetime], str],
    *,
    filled: bool = False,
) -> Chart:
    """`say` and `say_time` put a value and a time into words. All series have their points at the same times."""
    top = nice_top(max((point.value or 0.0 for line in series for point in line.points), default=0.0))
    lines = [
        Line(
            line.name,
            line.style,
            _path(line.points, now, window, top),
            _area(line.points, now, window, top) if filled else "",
            _last(line.points, say),
        )
        for line in series
    ]
    times = [point.at for point in series[0].points] if series else []
    rows = [
        [say_time(at), *("" if (value := line.points[index].value) is None else say(value) for line in series)]
        for index, at in enumerate(times)
    ]
    summary = ". ".join(_summary(line, say) for line in series)
    columns = _columns(times, rows, [line.name for line in series], now, window)
    return Chart(title, summary, lines, ticks(top, say), columns, ["time", *(line.name for line in series)], rows[::-1])


def rates(counts: Sequence[Point]) -> list[Point]:
    """Per second between neighbours. None after a gap, and when a count fell, because it was reset."""
    found = [Point(counts[0].at, None)] if counts else []
    for before, after in pairwise(counts):
        took_s = (after.at - before.at).total_seconds()
        known = before.value is not None and after.value is not None and 0 < took_s <= GAP_S
        grown = (after.value or 0.0) - (before.value or 0.0)
        found.append(Point(after.at, grown / took_s if known and grown >= 0 else None))
    return found


def _runs(points: Sequence[Point]) -> list[list[Point]]:
    """The stretches without a gap."""
    found: list[list[Point]] = []
    before: Point | None = None
    for point in points:
        if point.value is not None:
            silent = before is None or (point.at - before.at).total_seconds() > GAP_S
            if silent:
                found.append([])
            found[-1].append(point)
        before = point if point.value is not None else None
    return found


def _path(points: Sequence[Point], now: datetime, window: timedelta, top: float) -> str:
    return " ".join(_stroke(run, now, window, top) for run in _runs(points))


def _stroke(run: Sequence[Point], now: datetime, window: timedelta, top: float) -> str:
    spots = [f"{_number(_x(point.at, now, window))} {_number(_y(point.value or 0.0, top))}" for point in run]
    if len(spots) == 1:
        return f"M{spots[0]}h0.01"  # a dot, by the round end of the stroke
    return "M" + "L".join(spots)


def _area(points: Sequence[Point], now: datetime, window: timedelta, top: float) -> str:
    parts = []
    for run in _runs(points):
        if len(run) > 1:
            first, last = (_number(_x(point.at, now, window)) for point in (run[0], run[-1]))
            parts.append(f"{_stroke(run, now, window, top)}L{last} {_number(HEIGHT)}L{first} {_number(HEIGHT)}Z")
    return " ".join(parts)


def _columns(
    times: Sequence[datetime],
    rows: Sequence[Sequence[str]],
    names: Sequence[str],
    now: datetime,
    window: timedelta,
) -> list[Column]:
    width = WIDTH * 60.0 / window.total_seconds()
    found = []
    for at, (said, *values) in zip(times, rows, strict=True):
        text = ", ".join(f"{name} {value or 'unknown'}" for name, value in zip(names, values, strict=True))
        found.append(Column(_number(_x(at, now, window) - width / 2), _number(width), f"{said}: {text}"))
    return found


def _summary(line: Series, say: Callable[[float], str]) -> str:
    values = [point.value for point in line.points if point.value is not None]
    if not values:
        return f"{line.name}: no samples"
    return f"{line.name}: between {say(min(values))} and {say(max(values))}, latest {say(values[-1])}"


def _last(points: Sequence[Point], say: Callable[[float], str]) -> str:
    last = points[-1].value if points else None
    return "" if last is None else say(last)


def _x(at: datetime, now: datetime, window: timedelta) -> float:
    return WIDTH * max(0.0, 1.0 - (now - at) / window)


def _y(value: float, top: float) -> float:
    return HEIGHT * (1.0 - value / top)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
