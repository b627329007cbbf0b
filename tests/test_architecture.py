"""Which package imports which, and what none may import."""

import ast
import re
import sys

from tests.support.databases import ROOT

TOP = ROOT / "outbox"
PACKAGES = sorted(folder.name for folder in TOP.iterdir() if (folder / "__init__.py").exists())
ALLOWED = {
    "core": "",
    "runtime": "",
    "downloads": "",
    "edges": "core runtime",
    "service": "core runtime",
    "election": "core edges service",
    "harvest": "core edges service election",
    "consumers": "core edges service",
    "journal": "core edges service",
    "graphs": "core edges service consumers",
    "relay": "core edges service",
    "spark": "core edges downloads",
    "operations": "core edges",
    "admin": "core edges operations",
    "devstack": "downloads",
}
"""Beside what lies below all of them."""
BELOW = {
    "runtime", "conf", "messages", "schema",
    "api", "models", "exceptions", "signals", "logs", "failpoints", "documents", "serializers", "redaction",
}  # fmt: skip
"""May be imported by all but the core, and import each other alone."""
ON_TOP = {"management", "contrib", "testing", "cli", "checks", "apps", "wakeups", "__init__"}
"""May import everything, and are imported by each other alone."""


def imported(path):
    module = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(module[: -node.level]) + "." if node.level else ""
            yield base + (node.module or "")
            yield from (f"{base}{node.module}.{alias.name}" for alias in node.names if node.module == "outbox")


def targets(paths):
    names = {name for path in paths for name in imported(path)}
    return {name.split(".")[1] for name in names if name.startswith("outbox.")}


def imports():
    """Package → the other packages it imports."""
    found = {package: targets((TOP / package).rglob("*.py")) for package in PACKAGES}
    return {package: sorted(names & set(PACKAGES) - {package}) for package, names in found.items()}


def parts():
    """Package, or module at the top → what of both it imports."""
    modules = {path.stem: [path] for path in TOP.glob("*.py")}
    packages = {name: list((TOP / name).rglob("*.py")) for name in PACKAGES}
    known = {*modules, *packages} - {"__init__"}
    return {name: targets(paths) & known - {name} for name, paths in {**modules, **packages}.items()}


def test_imports_are_those_of_the_document():
    text = (ROOT / "docs" / "architecture.md").read_text()
    written = dict(re.findall(r"^(\w+) *→ *(.*)$", text, re.MULTILINE))
    found = {name: " ".join(targets) or "nothing" for name, targets in imports().items() if name != "migrations"}
    assert written == found, "\n".join(f"{package} → {targets}" for package, targets in found.items())


def test_imports_follow_the_arrows():
    found = set()
    for name, seen in parts().items():
        if name in ON_TOP:
            continue
        allowed = {"core": set(), "runtime": set(), "migrations": BELOW}.get(
            name, BELOW | set(ALLOWED.get(name, "").split())
        )
        found |= {f"{name} → {target}" for target in seen - allowed}
    assert found == set()


def test_every_package_and_module_has_its_place():
    assert set(parts()) == {*ALLOWED, *BELOW, *ON_TOP, "migrations"}


def test_the_core_imports_only_the_standard_library():
    for path in (TOP / "core").rglob("*.py"):
        for name in imported(path):
            assert name.startswith((".", "outbox.core")) or name.split(".")[0] in sys.stdlib_module_names, (path, name)
            assert name.split(".")[0] not in ("time", "threading", "socket", "random", "logging", "os"), (path, name)
