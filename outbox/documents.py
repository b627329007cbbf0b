"""Parts of hints and errors that refer to the project: a page of its documents, and the install line of an extra.

A hint names a page, never a file, because a wheel has no documents.
"""

DOCS_URL = ""
"""The address of the folder `docs` of the published site, with a slash at its end. Empty until it is published."""


def page(name: str, section: str = "") -> str:
    """Return the words or the address by which a text refers to `docs/<name>.md`."""
    if DOCS_URL:
        return f"{DOCS_URL}{name}.html" + (f"#{section}" if section else "")
    return f"the page {name!r} of the documents" + (f", {section!r}" if section else "")


def install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f'pip install "django-transactional-outbox[{extra}]"'
