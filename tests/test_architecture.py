"""The rooms of the house and the arrows between them: who may import whom."""

import ast
import re
import sys

from tests.support.databases import ROOT

HOUSE = ROOT / "outbox"
ROOMS = sorted(folder.name for folder in HOUSE.iterdir() if (folder / "__init__.py").exists())


def imported(path):
    module = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(module[: -node.level]) + "." if node.level else ""
            yield base + (node.module or "")
            yield from (f"{base}{node.module}.{alias.name}" for alias in node.names if node.module == "outbox")


def arrows():
    """Room → the other rooms it imports."""
    drawn = {}
    for room in ROOMS:
        names = {name for path in (HOUSE / room).rglob("*.py") for name in imported(path)}
        targets = {name.split(".")[1] for name in names if name.startswith("outbox.")}
        drawn[room] = sorted(targets & set(ROOMS) - {room})
    return drawn


def test_the_arrows_are_those_of_the_document():
    text = (ROOT / "docs" / "architecture.md").read_text()
    written = dict(re.findall(r"^(\w+) *→ *(.*)$", text, re.MULTILINE))
    drawn = {room: " ".join(targets) or "nothing" for room, targets in arrows().items() if room != "migrations"}
    assert written == drawn, "\n".join(f"{room} → {targets}" for room, targets in drawn.items())


def test_the_core_imports_only_the_standard_library():
    for path in (HOUSE / "core").rglob("*.py"):
        for name in imported(path):
            assert name.startswith((".", "outbox.core")) or name.split(".")[0] in sys.stdlib_module_names, (path, name)
            assert name.split(".")[0] not in ("time", "threading", "socket", "random", "logging", "os"), (path, name)


def test_nothing_below_the_commands_is_imported_from_above():
    for room in ("core", "edges", "election", "harvest"):
        assert not {"cli", "contrib", "management", "devstack"} & set(arrows()[room]), room
