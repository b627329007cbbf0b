"""Finds the topics that are ledgers of Spark sinks, and the database of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from outbox.core.exactly_once.ledger import ForeignEntry, LedgerEntryError
from outbox.spark.sink.producers import SliceLedger

PREFIX = "outbox-spark-"


def origins(properties: Mapping[str, Any], topics: Iterable[str], give_up_at: float) -> dict[str, set[str]]:
    """Ledger → the origins in its last entries. Topics that hold other records are not in it."""
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
            except LedgerEntryError:  # no release can read this ledger, or only another one can
                continue
            if entry is not None:
                found.add(entry.origin)
        return found
    finally:
        topic.close()
