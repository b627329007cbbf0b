"""Headings of Markdown, the anchors that links name them by, and the files of the checkout."""

import re
import subprocess
from functools import cache
from pathlib import Path

from tests.support.databases import ROOT


@cache
def tracked():
    """The files that the project consists of, seen from its root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = listed.stdout.decode().split("\0")
    return [Path(name) for name in names if name and (ROOT / name).is_file()]


def slug(heading):
    """The anchor of a heading, as code forges make it: lower case, hyphens for spaces, no punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@cache
def anchors(path):
    """The anchors of every heading outside of code."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
