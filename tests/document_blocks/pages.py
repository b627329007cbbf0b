"""The code blocks of the documents, and the commands that stand in their sentences."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.databases import ROOT

_NAMES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/README.md")
PAGES = tuple(str(path.relative_to(ROOT)) for path in [*map(ROOT.joinpath, _NAMES), *sorted(ROOT.glob("docs/*.md"))])
# It tells also of earlier versions, whose commands may be gone.
HISTORY = "CHANGELOG.md"

SHELL = ("", "shell", "console")
# Drawings are compared with the code, and "text" is output, which nothing parses.
LANGUAGES = (*SHELL, "python", "yaml", "sql", "promql", "mermaid", "text")
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> Path | None:
        """Where the reader puts it: of a first line like `# shop/orders.py`."""
        found = re.match(r"# ([\w/]+/\w+\.py)\n", self.text)
        return Path(found[1]) if found and not found[1].endswith("settings.py") else None


@cache
def blocks(*languages: str) -> list[Block]:
    return [block for page in PAGES for block in _blocks_of(page) if block.language in languages]


def blocks_until(last: Block) -> list[Block]:
    """Those of the same page and language, in order."""
    return [block for block in _blocks_of(last.page) if block.language == last.language and block.line <= last.line]


@cache
def _blocks_of(page: str) -> tuple[Block, ...]:
    text = (ROOT / page).read_text()
    found = []
    for match in _BLOCK.finditer(text):
        indent, language, body = match.groups()
        line = text.count("\n", 0, match.start(3)) + 1
        found.append(Block(page, line, language, re.sub(f"^{indent}", "", body, flags=re.MULTILINE)))
    return tuple(found)


def language_of_fences(page: str) -> list[str]:
    """Of every second line of backquotes, which opens a block; the pattern of blocks must not overlook one."""
    opening = re.findall(r"^ *(?:```|~~~)(.*)$", (ROOT / page).read_text(), re.MULTILINE)[::2]
    assert len(opening) == len(_blocks_of(page))
    return opening


@cache
def spans() -> list[Block]:
    """The code in sentences, as blocks of one line."""
    found = []
    for page in PAGES:
        text = _BLOCK.sub(lambda match: "\n" * match[0].count("\n"), (ROOT / page).read_text())
        for match in _SPAN.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(page, line, "", re.sub(r"\s+", " ", match[1])))
    return found
