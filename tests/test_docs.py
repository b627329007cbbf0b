"""The documents agree with the code."""

import ast
import pkgutil
import re
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest
from django.dispatch import Signal

from outbox import __version__, checks, conf, exceptions, failpoints, signals
from outbox.management import commands
from outbox.messages.inserts import ORDER_LOCK, ORDER_SLOT
from tests.support.databases import ROOT
from tests.support.documents import anchors

FOLDERS = ("docs", "benchmarks", "tests")
OF_THE_SITE = {  # its drawings, and the theme in its last line
    "https://cdn.jsdelivr.net/npm/mermaid@11.12.1/dist/mermaid.esm.min.mjs",
    "https://github.com/pradyunsg/furo",
}
DOCS = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*.md"))])


def test_every_setting_is_documented_with_its_default_unit_and_meaning():
    text = (ROOT / "docs" / "settings.md").read_text()
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| (.*) \|$", text, re.MULTILINE))
    assert list(rows) == list(conf.SPECS)
    for key, spec in conf.SPECS.items():
        shown = spec.metadata["shown"] or repr(spec.default).replace("'", '"')
        assert rows[key].replace("`", "").startswith(shown), key
        assert rows[key].endswith(f"| {spec.metadata['unit']} | {spec.metadata['help']}"), key


def test_every_check_is_documented():
    text = (ROOT / "docs" / "checks.md").read_text()
    assert dict(re.findall(r"^\| `(outbox\.[EW]\d+)` \| (.*) \|$", text, re.MULTILINE)) == checks.CHECKS


def test_links_between_documents_lead_somewhere():
    for document in DOCS:
        for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", document.read_text()):
            target = (document.parent / link) if link else document
            assert target.exists(), f"{document.name}: {link}"
            assert not anchor or anchor in anchors(target), f"{document.name}: {link}#{anchor}"


def test_external_addresses_are_listed():
    links = {link for page in DOCS for link in re.findall(r"\](?:\(|: )(https?://[^\s)]+)", page.read_text())}
    listed = (ROOT / "docs" / "external-addresses.txt").read_text().splitlines()
    assert listed == sorted(set(listed))
    assert links - {*listed} == set(), "add them to docs/external-addresses.txt, after you have read the pages"
    assert {*listed} - links == OF_THE_SITE, "remove them from docs/external-addresses.txt"


def test_every_page_stands_once_in_the_lists_of_the_index():
    index = ROOT / "docs" / "index.md"
    listed = [(index.parent / link).resolve() for link in re.findall(r"\]\((.*)\)", index.read_text())]
    decisions = set(index.parent.glob("decisions/*.md")) - {index.parent / "decisions" / "README.md"}
    assert sorted(listed) == sorted({*DOCS} - decisions - {index})


def test_the_page_of_the_api_has_every_public_name():
    text = (ROOT / "docs" / "api.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \|", text, re.MULTILINE)
    names = {module: set(re.findall(r"`(\w+)`", found)) for module, found in rows}
    assert {f"{module}.{name}" for module in names for name in names[module] - known(module)} == set()
    for module in ("outbox", "outbox.harvest", "outbox.spark", "outbox.testing"):
        assert names[module] == {*import_module(module).__all__} - {"__version__"}, module
    public = {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    assert names["outbox.signals"] == public
    assert names["outbox.exceptions"] == {
        name for name, value in vars(exceptions).items() if isinstance(value, type) and issubclass(value, Exception)
    } - {"NotYet"}
    public = {f"{module}.{name}" for module in names for name in names[module]} | names.keys()
    texts = "\n".join(page.read_text() for page in DOCS)
    used = re.findall(r"^ *from (outbox[\w.]*) import (.+)$", texts, re.MULTILINE)
    assert {f"{module}.{name}" for module, found in used for name in found.split(", ")} <= public


def known(module):
    """With the names that a module imports on first use."""
    found = import_module(module)
    return {*dir(found), *getattr(found, "__all__", ())}


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules(commands.__path__)])
def test_the_help_of_a_command_names_its_exit_codes(name):
    module = import_module(f"{commands.__name__}.{name}")
    text = " ".join(module.Command().create_parser("manage.py", name).format_help().split())
    assert {
        code for code in exit_codes(module) if code > 2 and f" {code}: " not in text.partition("Exit codes:")[2]
    } == set()


def exit_codes(module):
    """The numbers in arguments of `sys.exit`, `SystemExit` and `CommandError(returncode=)`."""
    for call in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("sys.exit", "SystemExit", "CommandError"):
            values = [word.value for word in call.keywords if word.arg == "returncode"]
            for value in values if ast.unparse(call.func) == "CommandError" else call.args:
                for node in ast.walk(value):
                    found = vars(module).get(node.id) if isinstance(node, ast.Name) else getattr(node, "value", None)
                    if isinstance(found, int):
                        yield found


def arrows_of(text):
    """Package → packages that it imports, as the list in docs/architecture.md says."""
    written = re.findall(r"^(\w+) +→ (.*)$", text, re.MULTILINE)
    return {(name, target) for name, targets in written for target in targets.split() if target != "nothing"}


def test_the_drawing_of_packages_shows_the_arrows_of_the_list():
    text = (ROOT / "docs" / "architecture.md").read_text()
    drawing = re.search(r"```mermaid\n(.*?)```", text, re.DOTALL)[1]
    groups = dict(re.findall(r"subgraph (\w+)\[.*\n((?: +\w+\n)+?) +end\n", drawing))
    top, below = groups["top"].split(), groups["below"].split()
    listed = {(name, target) for name, target in arrows_of(text) if name not in (*top, *below) and target not in below}
    assert set(re.findall(r"^ +(\w+) --> (\w+)$", drawing, re.MULTILINE)) == listed
    assert {*top, *below, *chain.from_iterable(listed)} == set(re.findall(r"^(\w+) +→", text, re.MULTILINE))


def test_every_package_and_module_has_a_row_in_the_architecture():
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    described = {name.removesuffix(".py") for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    names = {
        path.stem for path in (ROOT / "outbox").iterdir() if path.name[0] not in "_." and path.suffix in ("", ".py")
    }
    assert described == {name for name in names if has_files(ROOT / "outbox" / name)}
    assert len(described) == sum(len(re.findall(r"`([\w.]+)`", row)) for row in rows), "described twice"


def has_files(path):
    """A folder whose files have moved is left with its caches."""
    return not path.is_dir() or any("__pycache__" not in found.parts for found in path.rglob("*.*"))


def test_places_of_features_exist():
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.search(r"^\| feature \|.*?\n\n", text, re.MULTILINE | re.DOTALL)[0]
    places = re.findall(r"`([\w/.]+)`", rows)
    assert places
    for place in places:
        assert (ROOT / place if place.startswith("tests/") else ROOT / "outbox" / place).exists(), place


def test_every_make_target_in_the_documents_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCS:
        assert set(re.findall(r"`make ([a-z]+)", document.read_text())) <= targets, document.name


def test_every_failpoint_is_used_once_and_listed():
    source = "\n".join(path.read_text() for path in (ROOT / "outbox").rglob("*.py"))
    used = re.findall(r'failpoint\("([a-z-]+)"\)', source)
    assert set(used) == set(failpoints.FAILPOINTS)


def test_the_changelog_has_a_place_for_this_version():
    text = (ROOT / "CHANGELOG.md").read_text()
    assert "## Unreleased" in text or f"## {__version__}" in text


def test_the_lock_of_other_languages_is_the_one_that_stash_takes():
    text = (ROOT / "docs" / "stash.md").read_text()
    assert f"pg_advisory_xact_lock({ORDER_LOCK}, {ORDER_SLOT.format(topic=repr('orders'), key=repr('42'))})" in text
