"""Which call a worker's thread is in, and since when: the member's thread ends the process when one takes too long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from outbox.runtime import Runtime

FUNCTION, HOOK = "function", "hook"


@dataclass(slots=True)
class Call:
    """Of the user's function, or of a port. Another thread reads when it began, and sees the next call without a new
    object for each message."""

    name: str
    began_at: float
    limit_s: float

    def again(self, now: float) -> None:
        """The same for the next messages."""
        self.began_at = now


class CallWatch:
    """Of one worker."""

    def __init__(self, runtime: Runtime, limit_s: float) -> None:
        """`limit_s` is that of calls of PostgreSQL."""
        self._runtime, self._limit_s = runtime, limit_s
        self.call: Call | None = None
        """None: none that is watched."""

    def begin(self, name: str, limit_s: float, now: float) -> Call:
        self.call = call = Call(name, now, limit_s)
        return call

    def end(self) -> None:
        self.call = None

    @contextmanager
    def during(self, name: str, limit_s: float | None = None) -> Iterator[None]:
        self.begin(name, self._limit_s if limit_s is None else limit_s, self._runtime.monotonic())
        try:
            yield
        finally:
            self.end()
