"""What hints and errors say of the project itself: which page of the documents helps, never a file that a wheel lacks,
and how an extra is installed."""

DOCS_URL = ""
"""The address of the published documents, with a slash at its end. Empty until they are published."""


def page(name: str, section: str = "") -> str:
    """How a text names `docs/<name>.md`."""
    if DOCS_URL:
        return f"{DOCS_URL}{name}.html" + (f"#{section}" if section else "")
    return f"the page {name!r} of the documents" + (f", {section!r}" if section else "")


def install(extra: str) -> str:
    return f'pip install "django-transactional-outbox[{extra}]"'
