"""Headings of Markdown and the anchors that links name them by."""

import re
from functools import cache


def slug(heading):
    """The anchor of a heading, as code forges make it: lower case, hyphens for spaces, no punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@cache
def anchors(path):
    """The anchors of every heading outside of code."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
