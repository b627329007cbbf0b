"""Whether a daemon lives and is ready, as those ask who start processes and send them work.

Alive: it runs; an outage does not make it fail, because a restart would not end one. What ready means says the daemon.
"""

from __future__ import annotations

from typing import Protocol

from outbox.service.lifecycle import State

LIVE, READY = "/livez", "/readyz"


class Probed(Protocol):
    @property
    def state(self) -> State: ...

    @property
    def is_ready(self) -> bool: ...


def answer(path: str, daemon: Probed) -> tuple[int, str] | None:
    """Status and text for an HTTP request of this path; None when it is no probe."""
    if path == LIVE:
        return (200 if daemon.state in (State.RUNNING, State.STOPPING) else 503), f"{daemon.state}\n"
    if path == READY:
        return (200, "ready\n") if daemon.is_ready else (503, "not ready\n")
    return None
