"""What texts of the package say of the documents and of installing it."""

import ast
import re
import struct
import tomllib

import pytest

from outbox import documents
from tests.support.databases import ROOT

SOURCES = sorted((ROOT / "outbox").rglob("*.py"))
IMAGES = ROOT / "docs" / "images"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def calls(name):
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                yield [argument.value for argument in node.args if isinstance(argument, ast.Constant)]


def strings():
    """Without docstrings, which users do not see."""
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
                yield path, node.value


def test_every_page_that_a_text_names_exists():
    named = list(calls("page"))
    assert len(named) > 5
    for name, *section in named:
        text = (ROOT / "docs" / f"{name}.md").read_text()
        assert not section or f"#{section[0]}" in text or re.search(rf"^#+ .*{section[0]}", text, re.MULTILINE), name


def test_a_page_is_named_by_its_address_when_there_is_one(monkeypatch):
    assert documents.page("table", "create_time") == "the page 'table' of the documents, 'create_time'"
    monkeypatch.setattr(documents, "DOCS_URL", "https://documents.test/")
    assert documents.page("table") == "https://documents.test/table.html"
    assert documents.page("table", "create_time") == "https://documents.test/table.html#create_time"


def test_no_text_names_a_file_that_a_wheel_lacks():
    assert [(path.name, text) for path, text in strings() if re.search(r"\bdocs/\w", text)] == []


@pytest.mark.parametrize(
    "path", [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", *SOURCES], ids=lambda path: path.name
)
def test_the_install_line_is_the_same_everywhere(path):
    for line in re.findall(r'pip install "(?!\.)([^"]*)"', path.read_text()):
        assert line.startswith(f"{PROJECT['name']}["), line


def test_every_extra_that_is_named_exists():
    named = {name for name, *_ in filter(None, calls("install"))}
    assert named == {"devstack"}
    assert named <= PROJECT["optional-dependencies"].keys()


def test_the_licence_is_in_the_package():
    assert PROJECT["license"] == "BSD-3-Clause"
    assert "BSD 3-Clause License" in (ROOT / PROJECT["license-files"][0]).read_text()


def images_shown():
    """In Markdown and in HTML, of this repository."""
    for folder in (".", "docs", "docs/decisions", "benchmarks"):
        for document in (ROOT / folder).glob("*.md"):
            for link in re.findall(r'[("\s]([^\s()":]*\bimages/[\w.-]+)', document.read_text()):
                yield (document.parent / link).resolve()


def test_images_that_documents_show_exist_and_every_image_is_shown():
    assert set(images_shown()) == {path.resolve() for path in IMAGES.iterdir()}


@pytest.mark.parametrize("path", [*IMAGES.glob("*.png")], ids=lambda path: path.name)
def test_pictures_are_small(path):
    data = path.read_bytes()
    assert len(data) < 150_000
    assert struct.unpack(">I", data[16:20]) == (1280,)
