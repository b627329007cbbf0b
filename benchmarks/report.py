"""The one table that `make bench` prints. It measures nothing."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path


def load() -> float:
    return os.getloadavg()[0]


def say(text: str) -> None:
    """A line of progress, apart from the table."""
    print(f"# load {load():4.1f}  {text}", file=sys.stderr, flush=True)


@dataclass
class Row:
    """One line: the figures of all rounds, shown as their median and their extremes."""

    name: str
    unit: str
    goal: str = ""
    shape: Callable[[float], str] = "{:,.0f}".format
    figures: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    def add(self, figure: float, note: str = "") -> None:
        self.figures.append(figure)
        self.loads.append(load())
        if note:
            self.notes.append(note)

    @property
    def median(self) -> float:
        return statistics.median(self.figures)

    @property
    def cells(self) -> tuple[str, ...]:
        if not self.figures:
            return self.name, "-", "", self.goal, "; ".join(self.notes), ""
        low, high = min(self.figures), max(self.figures)
        spread = f"{self.shape(low)} .. {self.shape(high)}" if len(self.figures) > 1 else ""
        note = self.notes[-1] if self.notes else ""
        figure = f"{self.shape(self.median)} {self.unit}".strip()
        return self.name, figure, spread, self.goal, f"{statistics.median(self.loads):.1f}", note

    @property
    def values(self) -> dict[str, str | float | None]:
        """The same for programs; without a spread if there was one round."""
        spread = len(self.figures) > 1
        return {
            "name": self.name,
            "unit": self.unit,
            "goal": self.goal,
            "median": self.median,
            "smallest": min(self.figures) if spread else None,
            "largest": max(self.figures) if spread else None,
            "load": statistics.median(self.loads),
        }


HEAD = ("what", "median", "smallest .. largest", "goal", "load", "beside")


class Table:
    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}

    def row(self, name: str, unit: str = "", goal: str = "", shape: Callable[[float], str] = "{:,.0f}".format) -> Row:
        """The line of this name; a new one at the end if there is none yet."""
        return self._rows.setdefault(name, Row(name, unit, goal, shape))

    def show(self, head: Sequence[str]) -> None:
        print("\n".join(head), end="\n\n")
        lines = [HEAD, *(row.cells for row in self._rows.values())]
        widths = [max(len(line[place]) for line in lines) for place in range(len(HEAD) - 1)]
        for number, line in enumerate(lines):
            fixed = (cell.ljust(width) for cell, width in zip(line, widths, strict=False))
            print("  ".join((*fixed, line[-1])).rstrip())
            if not number:
                print("-" * 132)
        sys.stdout.flush()

    def write(self, path: Path, command: str, head: Sequence[str]) -> None:
        """For `benchmarks.chart`, and for comparison with later runs."""
        rows = [row.values for row in self._rows.values() if row.figures]
        found = {"command": command, "head": list(head), "rows": rows}
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def ratio(value: float) -> str:
    return f"{value:.2f}"
