"""A real PostgreSQL and a real Apache Kafka for tests, demos and benchmarks, from Python wheels and Maven jars.

It uses nothing of the system: no Docker, no Java, no PostgreSQL, no root. The names below are the public API. This
module only forwards to them, so that importing it is cheap and imports neither Django nor an optional dependency.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outbox.devstack.kafka import Broker, Kafka
    from outbox.devstack.origins import origin
    from outbox.devstack.postgres import Postgres
    from outbox.devstack.stack import Stack

_HOMES = {
    "Broker": "outbox.devstack.kafka",
    "Kafka": "outbox.devstack.kafka",
    "Postgres": "outbox.devstack.postgres",
    "Stack": "outbox.devstack.stack",
    "origin": "outbox.devstack.origins",
}

__all__ = ["Broker", "Kafka", "Postgres", "Stack", "origin"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
