"""What is decided in small machines stays small: no class of exactly-once delivery holds more than 25 attributes."""

import ast
from pathlib import Path

import outbox

ATTRIBUTES_MAX = 25
PATTERNS = (
    "core/exactly_once/*.py",
    "core/lease.py",
    "harvest/lease_keeper.py",
    "harvest/exactly_once/**/*.py",
)


def assigned(node):
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return isinstance(node.value, ast.Name) and node.value.id == "self"
    return False


def is_open_dataclass(node):
    texts = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any(text.startswith("dataclass") and "frozen=True" not in text for text in texts)


def attributes(node):
    """Names assigned on `self` anywhere, and fields of a dataclass that is not frozen."""
    found = {inner.attr for inner in ast.walk(node) if assigned(inner)}
    if is_open_dataclass(node):
        found |= {field.target.id for field in node.body if isinstance(field, ast.AnnAssign)}
    return found


def test_no_class_of_exactly_once_delivery_has_more_than_25_attributes():
    root = Path(outbox.__file__).parent
    paths = [path for pattern in PATTERNS for path in root.glob(pattern)]
    counted = {
        node.name: len(attributes(node))
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    assert {name: count for name, count in counted.items() if count > ATTRIBUTES_MAX} == {}
    assert {
        "Rounds",
        "PageReader",
        "Lanes",
        "LaneState",
        "ReadConnection",
        "Round",
        "ExactlyOnce",
        "Transactions",
    } <= counted.keys()
    assert counted["PageReader"] > 10, "it counts"
