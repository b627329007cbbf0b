"""Which topics of the cluster are ledgers of Spark sinks, and of which outbox."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from outbox.core.exactly_once.ledger import ForeignEntry, LedgerEntryError
from outbox.spark.sink.producers import SliceLedger

PREFIX = "outbox-spark-"


def origins(properties: Mapping[str, Any], topics: Iterable[str], give_up_at: float) -> dict[str, set[str]]:
    """Ledger → what its last entries say of where their records came from. Topics that hold something else are not
    in it."""
    found: dict[str, set[str]] = {}
    for name in topics:
        if name.startswith(PREFIX) and (said := _said(SliceLedger(properties, name), give_up_at)) is not None:
            found[name] = said
    return found


def _said(topic: SliceLedger, give_up_at: float) -> set[str] | None:
    found = set()
    try:
        for slice_ in range(topic.partitions()):
            try:
                entry = topic.last_entry(slice_, give_up_at)
            except ForeignEntry:
                return None
            except LedgerEntryError:  # a ledger that no release, or another one, can read
                continue
            if entry is not None:
                found.add(entry.origin)
        return found
    finally:
        topic.close()
