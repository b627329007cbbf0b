"""Journals: append-only byte sequences whose bytes are on stores and whose commit point is the caller's transaction."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outbox.journal.api import StagedAppend as StagedAppend
    from outbox.journal.api import append as append
    from outbox.journal.api import change as change
    from outbox.journal.api import create as create
    from outbox.journal.api import journals as journals
    from outbox.journal.api import open_file as open_file
    from outbox.journal.api import read as read
    from outbox.journal.api import refusals as refusals
    from outbox.journal.api import reset_head as reset_head
    from outbox.journal.api import show as show
    from outbox.journal.api import stage as stage

_API = (
    *("StagedAppend", "append", "change", "create", "journals", "open_file", "read", "refusals", "reset_head"),
    *("show", "stage"),
)
_ERRORS = (
    *("FragmentUnavailable", "JournalDiverged", "JournalError", "NoContent", "ReadOnlyJournal", "RegisterMismatch"),
    *("StageExpired", "SuspectJournal", "TooFewStores", "UnknownJournal", "WrongOffset"),
)
__all__ = [*_API, *_ERRORS]


def __getattr__(name: str) -> Any:
    """On first use: Django's apps may not be ready when this is imported."""
    if name in _API:
        return getattr(import_module("outbox.journal.api"), name)
    if name in _ERRORS:
        return getattr(import_module("outbox.journal.errors"), name)
    raise AttributeError(f"module 'outbox.journal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
