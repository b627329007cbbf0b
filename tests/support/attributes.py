"""Which attributes the classes of a module have, and which code outside of its classes assigns them."""

import ast


def classes(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def held(node):
    """Names assigned on `self` anywhere in the class, and fields of a dataclass that is not frozen."""
    found = {inner.attr for inner in ast.walk(node) if is_assigned(inner) and is_own(inner.value)}
    return found | declared(node) if any(map(is_open_dataclass, node.decorator_list)) else found


def known(node):
    """Whatever its instances may have, as far as the class says."""
    return held(node) | declared(node)


def declared(node):
    fields = (line.target for line in node.body if isinstance(line, ast.AnnAssign))
    return {field.id for field in fields if isinstance(field, ast.Name)}


def is_open_dataclass(decorator):
    name, _, options = ast.unparse(decorator).partition("(")
    return name.split(".")[-1] == "dataclass" and "frozen=True" not in options


def is_assigned(node):
    """Also where it is deleted, or increased."""
    return isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)


def is_own(value):
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def assigned_from_outside(node, names, own=frozenset()):
    """Those of `names` that are assigned to something else than `self`, outside of classes that know them. Whose they
    are is not known: what comes from elsewhere may have one of the same name."""
    if isinstance(node, ast.ClassDef):
        own = known(node)
    found = {node.attr} & names - own if is_assigned(node) and not is_own(node.value) else set()
    return found.union(*(assigned_from_outside(child, names, own) for child in ast.iter_child_nodes(node)))
