"""Whether enough stores have a fragment."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from outbox.core.journal.values import Replication


def zones_of(stores: Collection[str], zones: Mapping[str, str]) -> int:
    return len({zones[store] for store in stores})


def suffices(wanted: Replication, stores: Collection[str]) -> bool:
    """Several replicas are in at least two zones: the loss of one zone must not be the loss of a byte."""
    return len(stores) >= wanted.replicas and zones_of(stores, wanted.zones) >= min(2, wanted.replicas)
