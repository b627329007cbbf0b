"""The parts of docs/protocol.md that are made from the code. `python -m tests.support.protocol` writes them anew."""

from __future__ import annotations

import ast
import importlib
import logging
import pkgutil
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from outbox import core
from outbox.core.region import Transitions
from outbox.runtime.locks import LOCKS, THREADS
from tests.support.databases import ROOT
from tests.support.watched import Seen, Watched, waits_for

DOCUMENT = ROOT / "docs" / "protocol.md"
SEEDS = range(60)
OFTEN = 4
"""So many arrows of one kind are said in words."""
_NAMING = ("thread", "Thread", "Session", "super().__init__")
"""What is given the name of a thread."""
PACKAGES = ("consumers", "edges", "election", "graphs", "harvest", "journal", "relay", "service")


def tables() -> Iterator[tuple[str, Transitions]]:
    """Each with the name of its module."""
    for module in sorted(m.name for m in pkgutil.walk_packages(core.__path__, "outbox.core.")):
        for value in vars(importlib.import_module(module)).values():
            if isinstance(value, Transitions):
                yield module, value


def drawings() -> str:
    return "\n".join(drawing(module, table) for module, table in tables())


def drawing(module: str, table: Transitions) -> str:
    edges = list(table.edges())
    begun = Counter((events, after) for _, events, after in edges)
    often = {edge for edge, count in begun.items() if count > OFTEN}
    lines = [f"    [*] --> {table.first.name}"]
    lines += [
        f"    {before.name} --> {after.name} : {events}"
        for before, events, after in edges
        if (events, after) not in often
    ]
    text = "\n".join(lines)
    beside = "".join(
        f"\n`{events}` leads to `{after.name}` from "
        + ", ".join(f"`{b.name}`" for b, e, a in edges if (e, a) == (events, after))
        + ".\n"
        for events, after in begun
        if (events, after) in often
    )
    return f"### {table.name}\n\nIn `{module}`.\n\n```mermaid\nstateDiagram-v2\n{text}\n```\n{beside}"


def threads() -> str:
    rows = [f"| `{name}` | {work} |" for name, work in THREADS.items()]
    return "\n".join(["| thread | what it does |", "| --- | --- |", *rows])


def locks(seen: Seen) -> str:
    """Who takes each, and what was waited for under it, while the simulation ran."""
    rows = []
    for name, guarded in LOCKS.items():
        takers = ", ".join(f"`{thread}`" for lock, thread in sorted(seen.taken) if lock == name and thread)
        waits = ", ".join(what for lock, what in sorted(seen.waits) if lock == name)
        rows.append(f"| {name} | {guarded} | {takers or '–'} | {waits or 'nothing'} |")
    header = "| lock | what it guards | who takes it | what is waited for under it |"
    return "\n".join([header, "| --- | --- | --- | --- |", *rows])


@contextmanager
def watched(seen: Seen) -> Iterator[None]:
    """Processes of the simulation run on a watched runtime."""
    from tests.simulation.exactly_once.process import Process

    def log(*given: object, **named: object) -> None:
        waits_for("a log handler", seen)

    with ExitStack() as stack:
        stack.enter_context(patch.object(Process, "watch", staticmethod(lambda runtime: Watched(runtime, seen))))
        for name in ("debug", "info", "warning", "error", "exception"):
            stack.enter_context(patch.object(logging.Logger, name, log))
        yield


def seen_by_the_simulation() -> Seen:
    from tests.simulation.exactly_once.scenario import PLAIN, run

    seen = Seen()
    for seed in SEEDS:
        run(seed, PLAIN, lambda: watched(seen))
    return seen


def thread_names() -> set[str]:
    """Those that the code gives, with N for what is put in."""
    return {name for package in PACKAGES for path in (ROOT / "outbox" / package).rglob("*.py") for name in _names(path)}


def _names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(_NAMING):
            given = (ast.unparse(one) for one in (*node.args, *(keyword.value for keyword in node.keywords)))
            yield from (re.sub("{.*?}", "N", text.lstrip("f")[1:-1]) for text in given if re.match("f?'outbox-", text))


def made(seen: Seen) -> dict[str, str]:
    return {"states": drawings(), "threads": threads(), "locks": locks(seen)}


def with_parts(text: str, parts: dict[str, str]) -> str:
    for name, part in parts.items():
        pattern = rf"(<!-- {name}: made from the code -->\n).*?(<!-- end -->)"
        text, count = re.subn(pattern, lambda m, part=part: f"{m[1]}\n{part.strip()}\n\n{m[2]}", text, flags=re.DOTALL)
        assert count == 1, f"{DOCUMENT.name} has no place for {name}"
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(with_parts(DOCUMENT.read_text(), made(seen_by_the_simulation())))
