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


ATTRIBUTES_MAX = 25
STILL_LARGER = {"Rounds": 54}
"""Classes that are still to be divided, and how many attributes they may have until then."""


def attributes(tree):
    """Class → how many names are assigned on `self`, and fields of a dataclass that can change."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names = {
                found.attr
                for found in ast.walk(node)
                if isinstance(found, ast.Attribute)
                and isinstance(found.ctx, ast.Store)
                and getattr(found.value, "id", "") == "self"
            }
            if any(
                "dataclass" in ast.unparse(made) and "frozen" not in ast.unparse(made) for made in node.decorator_list
            ):
                names |= {found.target.id for found in node.body if isinstance(found, ast.AnnAssign)}
            yield node.name, len(names)


def test_no_class_of_exactly_once_delivery_has_more_than_25_attributes():
    paths = [*(TOP / "harvest").glob("exactly_once*.py"), TOP / "harvest" / "resize.py"]
    paths += (TOP / "core" / "exactly_once").glob("*.py")
    for path in paths:
        for name, count in attributes(ast.parse(path.read_text())):
            assert count <= STILL_LARGER.get(name, ATTRIBUTES_MAX), (path.name, name, count)


def test_attributes_are_counted_wherever_they_are_assigned():
    text = """
@dataclass(slots=True)
class Changing:
    a: int
    b: int = 0
    def f(self, other):
        self.c = other.d = 1
        self.e.f += 1
        for self.g, (self.h, _) in (): self.a += 1

@dataclass(frozen=True)
class Fixed:
    a: int
"""
    assert dict(attributes(ast.parse(text))) == {"Changing": 5, "Fixed": 0}
