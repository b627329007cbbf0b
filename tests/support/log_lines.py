"""What the package's source says about its own log: every event, its level and its fields."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.databases import ROOT

LEVELS = {"debug": "DEBUG", "info": "INFO", "warning": "WARNING", "error": "ERROR", "exception": "ERROR"}
NOT_IN_PRODUCTION = ("devstack", "testing")


@dataclass
class Event:
    levels: set[str] = field(default_factory=set)
    fields: list[str] = field(default_factory=list)
    files: set[str] = field(default_factory=set)

    def add(self, level: str, template: str, file: str) -> None:
        self.levels.add(level)
        self.files.add(file)
        self.fields += [name for name in re.findall(r"(\w+)=%", template) if name not in self.fields]


def sources() -> Iterator[Path]:
    for path in sorted((ROOT / "outbox").rglob("*.py")):
        if path.relative_to(ROOT / "outbox").parts[0] not in NOT_IN_PRODUCTION:
            yield path


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """(the last part of the function's name, the call) of what may write to the log."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value
            owner = of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""
            if (node.func.attr in LEVELS and owner.strip("_") in ("logger", "log")) or node.func.attr == "_log":
                yield node.func.attr, node
            elif owner.strip("_") == "troubles" and node.func.attr in ("seen", "over"):
                yield f"troubles.{node.func.attr}", node


def events() -> dict[str, Event]:
    """Every event in the source, by its name."""
    found: dict[str, Event] = {}
    for path in sources():
        file = str(path.relative_to(ROOT))
        for kind, call in calls(path):
            template = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else ""
            if not isinstance(template, str) or not template or template.startswith("%s"):
                continue  # the client's own words, or put together elsewhere
            if kind == "troubles.seen":
                level, template = "WARNING", f"{template}_failed lane=%d error=%r"
            elif kind == "troubles.over":
                level, template = "INFO", f"{template}_works_again lane=%d after_s=%.3f"
            elif kind == "_log":
                level, template = "INFO", f"{template} member=%s"
            else:
                level = LEVELS[kind]
            name = template.split()[0].rstrip(":")
            found.setdefault(name, Event()).add(level, template, file)
    return dict(sorted(found.items()))
