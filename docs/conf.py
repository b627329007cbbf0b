"""Sphinx builds the site from the Markdown files of the repository, which stay readable without it.

The source folder is the root of the repository, so that a link leads to the same file here and on a repository site.
Four pages get an addition while Sphinx reads them: `docs/index.md` the navigation, which repeats its lists, and three
references the entries that come from the code.
"""

import inspect
import os
import pkgutil
import re
import shutil
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path

import django
from pygments.lexers.special import TextLexer
from sphinx.util.logging import getLogger

import outbox
from outbox.management import commands

DOCS = Path(__file__).parent
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
django.setup()

project = "outbox"
release = outbox.__version__
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinxcontrib.mermaid"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "benchmarks/*.md", "tests/*/MATRIX.md"]
myst_heading_anchors = 6
myst_fence_as_directive = ["mermaid"]
mermaid_version = "11.12.1"  # the browser of the reader loads it
highlight_language = "text"
default_role = "literal"  # docstrings write `name`

html_theme = "furo"
html_title = f"outbox {release}"
html_show_sphinx = False
html_copy_source = False

LOG = getLogger(__name__)
ADDRESS = re.compile(r"""(?<!xmlns=)["'](https?://[^"']+)""")  # of links, images, styles and scripts


def navigation(text):
    """The lists of each section as a hidden table of contents."""
    for caption, section in re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", text, re.MULTILINE):
        entries = "\n".join(re.findall(r"\]\((.*)\.md\)", section))
        yield f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```"


def decisions(text):
    yield "```{toctree}\n:hidden:\n:glob:\n\n*\n```"


def command_entries(text):
    """The help of every command and its subcommands, without the options that Django gives to each."""
    for module in pkgutil.iter_modules(commands.__path__):
        command = import_module(f"{commands.__name__}.{module.name}").Command()
        parser = ArgumentParser(prog=f"manage.py {module.name}", description=command.help)
        command.add_arguments(parser)
        choices = (action.choices for action in parser._actions)
        parts = [part for found in choices if isinstance(found, dict) for part in found.values()]
        for part in [parser, *parts]:
            heading = "##" if part is parser else "###"
            yield f"{heading} {part.prog.removeprefix('manage.py ')}\n\n```\n{part.format_help()}```"


def api_entries(text):
    """The signatures and docstrings of the names in the table of the page."""
    for module, names in re.findall(r"^\| `([\w.]+)` \| (.*?) \|", text, re.MULTILINE):
        yield f"## {module}"
        for name in re.findall(r"`(\w+)`", names):
            value = getattr(import_module(module), name)
            kind = "class" if inspect.isclass(value) else "function" if callable(value) else "data"
            options = {"class": ":members:", "function": "", "data": ":no-value:"}[kind]
            yield f"```{{eval-rst}}\n.. auto{kind}:: {module}.{name}\n   {options}\n```"


def permission_entries(text):
    yield "| permission | name |\n| --- | --- |"
    for model in django.apps.apps.get_app_config("outbox").get_models():
        meta = model._meta
        default = [
            (f"{verb}_{meta.model_name}", f"Can {verb} {meta.verbose_name}") for verb in meta.default_permissions
        ]
        for codename, name in [*default, *meta.permissions]:
            yield f"| `outbox.{codename}` | {name} |"


ADDITIONS = {
    "docs/index": navigation,
    "docs/decisions/README": decisions,
    "docs/commands": command_entries,
    "docs/api": api_entries,
    "docs/permissions": permission_entries,
}


def add(app, page, source):
    if page in ADDITIONS:
        joint = "\n" if page == "docs/permissions" else "\n\n"
        source[0] += "\n" + joint.join(ADDITIONS[page](source[0])) + "\n"


def finish(app, error):
    """Make the page at the root of the site, copy the images that README shows by tags of HTML, check the addresses."""
    if app.builder.name != "html" or error:
        return
    used = {address for page in app.outdir.rglob("*.html") for address in ADDRESS.findall(page.read_text())}
    listed = set((DOCS / "external-addresses.txt").read_text().split())
    for address in sorted(used - listed):
        LOG.warning("%s is not in docs/external-addresses.txt: add it, after you have read the page", address)
    (app.outdir / "index.html").write_text('<meta http-equiv="refresh" content="0; url=docs/index.html">\n')
    shutil.copytree(DOCS / "images", app.outdir / "docs" / "images", dirs_exist_ok=True)


def setup(app):
    app.add_lexer("promql", TextLexer)
    app.connect("source-read", add)
    app.connect("build-finished", finish)
