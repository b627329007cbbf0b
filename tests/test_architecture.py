"""Which package imports which, and what none may import."""

import ast
import re
import sys

from tests.support.databases import ROOT

TOP = ROOT / "outbox"
PACKAGES = sorted(folder.name for folder in TOP.iterdir() if (folder / "__init__.py").exists())


def imported(path):
    module = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(module[: -node.level]) + "." if node.level else ""
            yield base + (node.module or "")
            yield from (f"{base}{node.module}.{alias.name}" for alias in node.names if node.module == "outbox")


def imports():
    """Package → the other packages it imports."""
    found = {}
    for package in PACKAGES:
        names = {name for path in (TOP / package).rglob("*.py") for name in imported(path)}
        targets = {name.split(".")[1] for name in names if name.startswith("outbox.")}
        found[package] = sorted(targets & set(PACKAGES) - {package})
    return found


def test_imports_are_those_of_the_document():
    text = (ROOT / "docs" / "architecture.md").read_text()
    written = dict(re.findall(r"^(\w+) *→ *(.*)$", text, re.MULTILINE))
    found = {name: " ".join(targets) or "nothing" for name, targets in imports().items() if name != "migrations"}
    assert written == found, "\n".join(f"{package} → {targets}" for package, targets in found.items())


def test_the_core_imports_only_the_standard_library():
    for path in (TOP / "core").rglob("*.py"):
        for name in imported(path):
            assert name.startswith((".", "outbox.core")) or name.split(".")[0] in sys.stdlib_module_names, (path, name)
            assert name.split(".")[0] not in ("time", "threading", "socket", "random", "logging", "os"), (path, name)


def test_nothing_below_the_commands_is_imported_from_above():
    for package in ("core", "runtime", "edges", "election", "harvest"):
        assert not {"cli", "contrib", "management", "devstack"} & set(imports()[package]), package
