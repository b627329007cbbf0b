"""The harvester: moves records from the table to Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outbox.harvest.harvester import Harvester
    from outbox.service.lifecycle import State

__all__ = ["Harvester", "State"]


def __getattr__(name: str) -> Any:
    """Imported at first use, so that a web process does not pay for the daemon."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from outbox.harvest import harvester

    return getattr(harvester, name)
