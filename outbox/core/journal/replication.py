"""Whether enough stores have a fragment."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from outbox.core.journal.values import Replication


def zones_of(stores: Collection[str], zones: Mapping[str, str]) -> int:
    """Stores without a zone are not in STORES any more."""
    return len({zones[store] for store in stores if store in zones})


def suffices(wanted: Replication, stores: Collection[str]) -> bool:
    """Several replicas are in at least two zones: the loss of one zone must not be the loss of a byte."""
    known = [store for store in stores if store in wanted.zones]
    return len(known) >= wanted.replicas and zones_of(stores, wanted.zones) >= min(2, wanted.replicas)
