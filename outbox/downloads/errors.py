"""The errors of the devstack, each with its remedy, and the check for the extra."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from outbox.documents import install
from outbox.exceptions import MissingExtra, OutboxError

_LOG_TAIL_LINES = 25


class DevstackError(OutboxError):
    """The devstack could not do its work."""


class StartError(DevstackError):
    """A server did not become ready. The message ends with its log and names the file, which is kept."""

    def __init__(self, what: str, log: Path) -> None:
        self.log = log
        super().__init__(f"{what}\nThe log is kept: {log}\n{tail(log)}")


def tail(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError as error:
        return f"(unreadable: {error})"
    return "\n".join(f"  {line}" for line in lines[-_LOG_TAIL_LINES:]) or "  (empty)"


def package_folder(module: str) -> Path:
    """The folder of an installed wheel, without importing it."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(
            f"The devstack needs the module {module}, which is not installed. Run: {install('devstack')}"
        )
    return Path(next(iter(spec.submodule_search_locations)))
