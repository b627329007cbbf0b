"""A YAML document as a tree that keeps the line of each entry, so that every problem can name its line.

Scalars keep their text: the reader of a key knows whether ``123`` is a topic or a count, YAML does not.
"""

from dataclasses import dataclass, field
from typing import Any

from outbox.exceptions import missing_extra


@dataclass(frozen=True)
class Problem:
    """One problem of the configuration: where, what, and the remedy."""

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


@dataclass(frozen=True)
class Scalar:
    """A value as the file has it, and as YAML reads it."""

    text: str
    value: Any


@dataclass(frozen=True)
class DocumentEntry:
    """One key: its path from the top, its line, and a scalar, a section, a list or nothing."""

    path: str
    line: int
    content: "Scalar | dict[str, DocumentEntry] | list[Any] | None"


@dataclass
class Document:
    name: str
    top: dict[str, DocumentEntry] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def where(self, entry: DocumentEntry) -> str:
        return f"{self.name}:{entry.line}: {entry.path}"

    def complain(self, entry: DocumentEntry, text: str) -> None:
        self.problems.append(Problem(self.where(entry), text))

    def section(self, entry: DocumentEntry | None) -> dict[str, DocumentEntry]:
        """The keys under an entry; an absent or empty entry has none."""
        if entry is None or entry.content is None:
            return {}
        if not isinstance(entry.content, dict):
            self.complain(entry, "is not a section. Put its keys below it, indented.")
            return {}
        return entry.content


def load(text: str, name: str) -> Document:
    """Read the text. The document lists the faults of its form among its problems."""
    try:
        import yaml
    except ImportError as error:
        missing_extra("harvest", error)
    document = Document(name)
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is not None:
            top = _Tree(document, loader).content(node, "", ())
            if isinstance(top, dict):
                document.top.update(top)
            elif top is not None:
                document.problems.append(Problem(f"{name}:1", "is not a mapping. Begin with: harvest:"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or str(error)
        document.problems.append(Problem(f"{name}{line}", f"is not valid YAML: {reason}."))
    finally:
        loader.dispose()
    return document


class _Tree:
    """Turns nodes into entries."""

    def __init__(self, document: Document, loader: Any) -> None:
        self.document, self.loader = document, loader

    def content(self, node: Any, path: str, above: tuple[int, ...]) -> Any:
        if id(node) in above:
            where = f"{self.document.name}:{node.start_mark.line + 1}: {path}"
            self.document.problems.append(Problem(where, "contains itself through an alias. Write it out."))
            return None
        if node.id == "mapping":
            return self._mapping(node, path, (*above, id(node)))
        if node.id == "sequence":
            return [self.content(item, path, (*above, id(node))) for item in node.value]
        try:
            value = self.loader.construct_object(node)
        except (ValueError, ArithmeticError, LookupError, AttributeError):
            value = node.value  # it looks like a date or a number, or is tagged as one, but is none: 2024-13-45
        return None if value is None else Scalar(node.value, value)

    def _mapping(self, node: Any, path: str, above: tuple[int, ...]) -> dict[str, DocumentEntry]:
        own = [key.value for key, _ in node.value if key.id == "scalar" and key.value != "<<"]
        self.loader.flatten_mapping(node)  # merge keys; the mapping's own keys come last and win
        entries: dict[str, DocumentEntry] = {}
        for key, value in node.value:
            name = key.value if key.id == "scalar" else "?"
            below = f"{path}.{name}" if path else name
            entries[name] = DocumentEntry(below, key.start_mark.line + 1, self.content(value, below, above))
        for name in {name for name in own if own.count(name) > 1}:
            self.document.complain(entries[name], "is set twice. Remove one of the two.")
        return entries
