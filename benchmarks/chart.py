"""`python -m benchmarks.chart` draws docs/images/throughput.svg from the files of `make bench ARGS="--json FILE"`.

python -m benchmarks.chart                  from benchmarks/results/*.json
python -m benchmarks.chart FILE [FILE ...]  from these; if several have a figure, the first one's is drawn
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = sorted((HERE / "results").glob("*.json"))
CHART = HERE.parent / "docs" / "images" / "throughput.svg"

OURS, OTHERS = "ours", "others"
BARS = {
    "drain, 1,000 keys": ("exactly-once, 1,000 keys", OURS),
    "drain, 200,000 keys": ("exactly-once, 200,000 keys", OURS),
    "drain, one key": ("exactly-once, one key", OURS),
    "drain, backlog of 5,000,000": ("exactly-once, backlog of 5,000,000", OURS),
    "at-least-once drain, 10,000 keys": ("at-least-once, 10,000 keys", OURS),
    "stage alone: produce": ("Kafka's client alone, without an outbox", OTHERS),
    "Debezium's outbox router, 1,000 keys": ("Debezium's outbox router, 1,000 keys", OTHERS),
    "one DELETE per record beside it, 10,000 keys": ("one DELETE per record, 10,000 keys", OTHERS),
}
"""Rows of the table that `make bench` prints, with their names in the chart, and whose figure each is."""

WIDTH, LABELS, FIGURES = 900, 310, 90
BAR, STEP, HEAD, LINE = 20, 30, 52, 17
FOOT_CHARS = 140
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-size: 16px; font-weight: 600 }
.foot { font-size: 11px; fill: #59636e }
.paper { fill: #ffffff }
.ours { fill: #0969da }
.others { fill: #8c959f }
.spread { stroke: #1f2328; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc }
.foot { fill: #9198a1 }
.paper { fill: #0d1117 }
.ours { fill: #4493f8 }
.others { fill: #656c76 }
.spread { stroke: #f0f6fc }
}
"""


@dataclass(frozen=True)
class Bar:
    label: str
    of: str
    median: float
    smallest: float | None
    largest: float | None
    run: int


def draw(runs: Sequence[dict[str, Any]]) -> str:
    """The chart of the figures in these files."""
    bars = _bars(runs)
    if not bars:
        sys.exit("None of the files has a figure for the chart. Run: make bench ARGS='--only drain --json FILE'")
    foot = list(_foot(runs))
    height = HEAD + STEP * len(bars) + 12 + LINE * len(foot) + 12
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="6"/>',
        '<text class="title" id="title" x="20" y="30">Records of 100 bytes per second, median; longer is better</text>',
    ]
    scale = (WIDTH - LABELS - FIGURES) / max(bar.largest or bar.median for bar in bars)
    for number, bar in enumerate(bars):
        parts += _drawn(bar, HEAD + STEP * number, scale, f" ({bar.run})" if len(runs) > 1 else "")
    for number, line in enumerate(foot):
        y = HEAD + STEP * len(bars) + 12 + LINE * number
        parts.append(f'<text class="foot" x="20" y="{y}">{escape(line, quote=False)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _bars(runs: Sequence[dict[str, Any]]) -> list[Bar]:
    found: dict[str, tuple[int, dict[str, Any]]] = {}
    for number, run in enumerate(runs, 1):
        for row in run["rows"]:
            found.setdefault(row["name"], (number, row))
    return [
        Bar(label, of, row["median"], row["smallest"], row["largest"], number)
        for name, (label, of) in BARS.items()
        if name in found
        for number, row in [found[name]]
    ]


def _drawn(bar: Bar, y: int, scale: float, mark: str) -> Iterator[str]:
    middle = y + BAR // 2
    yield f'<text x="{LABELS - 12}" y="{middle + 5}" text-anchor="end">{escape(bar.label, quote=False)}{mark}</text>'
    yield f'<rect class="{bar.of}" x="{LABELS}" y="{y}" width="{bar.median * scale:.1f}" height="{BAR}" rx="2"/>'
    end = bar.median
    if bar.smallest is not None and bar.largest is not None:
        end = bar.largest
        low, high = (LABELS + figure * scale for figure in (bar.smallest, bar.largest))
        yield f'<path class="spread" d="M{low:.1f} {middle}H{high:.1f}"/>'
    yield f'<text x="{LABELS + end * scale + 8:.1f}" y="{middle + 5}">{bar.median:,.0f}</text>'


def _foot(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The command and the machine of each run."""
    for number, run in enumerate(runs, 1):
        mark = f"({number}) " if len(runs) > 1 else ""
        for line in (mark + run["command"], *run["head"]):
            yield from textwrap.wrap(line, FOOT_CHARS)
    if any(bar.smallest is not None for bar in _bars(runs)):
        yield "Lines: from the smallest to the largest figure of the rounds."


def main() -> None:
    files = [Path(name) for name in sys.argv[1:]] or RESULTS
    CHART.write_text(draw([json.loads(path.read_text()) for path in files]))
    print(CHART)


if __name__ == "__main__":
    main()
