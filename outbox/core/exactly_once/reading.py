"""How long a read may take, what it may leave to the server, and how long to pause after one that has failed.

A read that has to walk over more dead rows than there is time for would fail for ever: after each failure it is given
twice the time. Where it also passed over what is held, that may have been what took so long: for a while the held
backlog is fetched page by page, which is only slow.
"""

from __future__ import annotations

from collections.abc import Callable

from outbox.core.patience import Backoff

_STRETCH_MAX = 64  # times the time of a statement
_FETCH_HELD_S = 600.0
_RETRY_MIN_S, _RETRY_MAX_S = 0.1, 2.0


class ReadPatience:
    def __init__(self, statement_timeout_s: float, draw: Callable[[], float]) -> None:
        self._statement_timeout_s, self._stretch = statement_timeout_s, 1
        self._backoff = Backoff(_RETRY_MIN_S, _RETRY_MAX_S, draw)
        self._fetch_held_until = float("-inf")

    @property
    def timeout_s(self) -> float:
        return self._stretch * self._statement_timeout_s

    @property
    def is_stretched(self) -> bool:
        """The server must be told to allow a read more time than other statements."""
        return self._stretch > 1

    def may_pass_over(self, now: float) -> bool:
        return now >= self._fetch_held_until

    def timed_out(self, now: float, *, passed_over: bool) -> None:
        """A read has failed for want of time. `passed_over`: it left something to the server."""
        self._stretch = min(_STRETCH_MAX, 2 * self._stretch)
        if passed_over:
            self._fetch_held_until = now + _FETCH_HELD_S

    def returned(self) -> None:
        """A read has not failed for want of time."""
        self._stretch = 1

    def failed(self) -> float:
        """The pause after whatever has failed."""
        return self._backoff.failed()

    def worked(self) -> None:
        self._backoff.worked()
