"""Transactional outbox for Django and Apache Kafka.

The public names are resolved on first use, so that ``import outbox`` works before Django's apps are ready and
loads nothing that a web process does not need.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outbox import journal as journal
    from outbox.api import Message as Message
    from outbox.api import correlation as correlation
    from outbox.api import stash as stash
    from outbox.api import stash_many as stash_many
    from outbox.consumers.registry import consumer as consumer
    from outbox.core.graphs.outputs import Output as Output
    from outbox.exceptions import NotYet as NotYet
    from outbox.graphs.registry import Graph as Graph
    from outbox.messages.consumed import identity as identity

__version__ = "0.1.0"

_HOMES = {
    "Graph": "outbox.graphs.registry",
    "Message": "outbox.api",
    "NotYet": "outbox.exceptions",
    "Output": "outbox.core.graphs.outputs",
    "consumer": "outbox.consumers.registry",
    "correlation": "outbox.api",
    "identity": "outbox.messages.consumed",
    "stash": "outbox.api",
    "stash_many": "outbox.api",
}

__all__ = [
    "Graph",
    "Message",
    "NotYet",
    "Output",
    "__version__",
    "consumer",
    "correlation",
    "identity",
    "journal",
    "stash",
    "stash_many",
]


def __getattr__(name: str) -> Any:
    if name == "journal":
        return import_module("outbox.journal")
    if name not in _HOMES:
        raise AttributeError(f"module 'outbox' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
