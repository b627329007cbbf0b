"""From a staged append to rows in the caller's transaction, and what is done once that has committed."""

from __future__ import annotations

from collections.abc import Mapping

from outbox.core.journal import append
from outbox.core.journal.fragments import index_path, index_text
from outbox.core.journal.values import Conditions, Staged, StoreFailed
from outbox.journal.errors import error_of
from outbox.journal.ports import CommitPort, StorePort, TablePort


def place(transaction: CommitPort, staged: Staged, conditions: Conditions) -> None:
    """The stage row goes and the fragments come, in one statement. The trigger gives them their offsets at COMMIT.

    To place the same append once more does nothing, so a COMMIT in doubt may be repeated."""
    if transaction.place(staged, conditions) is None:
        raise error_of(append.expired(staged.journal))


def write_index(table: TablePort, stores: Mapping[str, StorePort], staged: Staged) -> None:
    """After COMMIT, as well as it goes: the keeper writes what is missing, and finds what differs."""
    for placed in table.placed(staged.append):
        for store in placed.fragment.replicas:
            try:
                if store in stores:
                    stores[store].put(index_path(staged.journal, placed.begin), index_text(staged.journal, placed))
            except StoreFailed:
                continue
