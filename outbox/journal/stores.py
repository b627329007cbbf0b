"""The stores of the settings, opened once in each process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from outbox.conf import current
from outbox.edges.stores.local import LocalStore
from outbox.edges.stores.objects import ObjectStore
from outbox.exceptions import missing_extra
from outbox.journal.ports import StorePort


def zones() -> Mapping[str, str]:
    return {name: str(store["zone"]) for name, store in current().journal.stores.items()}


def stores() -> Mapping[str, StorePort]:
    return {name: _store(name, repr(given)) for name, given in current().journal.stores.items()}


@lru_cache(maxsize=256)
def _store(name: str, configuration: str) -> StorePort:
    """One for each configuration: settings may change in tests."""
    given = current().journal.stores[name]
    if "path" in given:
        return LocalStore(given["path"])
    try:
        import obstore  # noqa: F401
    except ImportError as error:
        missing_extra("journal", error)
    return ObjectStore(given["url"], given["options"])
