"""The state row as it was seen last, for lanes that only wait for a change of it: one question serves all of them.

Lanes ask from their own threads, heartbeats tell from that of the purges. Who asks the server holds a lock meanwhile,
for which the other lanes that ask wait: they would ask the same.
"""

from __future__ import annotations

from collections.abc import Callable

from outbox.core.exactly_once.decisions import StateRow
from outbox.runtime import Runtime

Ask = Callable[[Callable[[], bool]], StateRow]
"""Of the server, given whether to go on."""


class SeenState:
    def __init__(self, ask: Ask, runtime: Runtime) -> None:
        self._ask, self._runtime = ask, runtime
        self._asking = runtime.lock("state row")
        self._seen = float("-inf"), StateRow(0)
        """When it was asked for, and what it was: always both at once. An older one that replaces a newer is told by
        its age, and asked for again."""

    def seen(self, asked_at: float, state: StateRow) -> None:
        self._seen = asked_at, state

    def not_older(self, max_age_s: float, may_go_on: Callable[[], bool]) -> StateRow:
        with self._asking:
            begun = self._runtime.monotonic()
            asked_at, seen = self._seen
            if begun - asked_at <= max_age_s:
                return seen
            state = self._ask(may_go_on)
            self.seen(begun, state)
            return state
