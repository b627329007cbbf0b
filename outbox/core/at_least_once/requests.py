"""The statements of one lane. At most one of each kind is under way; its outcome names the ticket that it was given."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from outbox.core.at_least_once.values import Limits


class Request:
    """One kind of statement. `due_at`: none begins before."""

    __slots__ = ("_ticket", "_tickets", "due_at")

    def __init__(self, tickets: Iterator[int], due_at: float) -> None:
        self._tickets = tickets
        self._ticket = 0  # of the one whose outcome is awaited; 0: none is
        self.due_at = due_at

    @property
    def is_awaited(self) -> bool:
        return self._ticket != 0

    def may_begin(self, now: float) -> bool:
        return not self._ticket and now >= self.due_at

    def begin(self) -> int:
        self._ticket = next(self._tickets)
        return self._ticket

    def settle(self, ticket: int) -> bool:
        """Whether this outcome is the one awaited; outcomes of forgotten statements change nothing."""
        if ticket != self._ticket:
            return False
        self._ticket = 0
        return True

    def forget(self) -> None:
        self._ticket = 0

    def put_off(self, until: float) -> None:
        self.due_at = until


class Requests:
    """All kinds; their tickets are numbered together."""

    __slots__ = ("fetch", "mark", "purge", "reset", "sweep", "take")

    def __init__(self, limits: Limits, now: float) -> None:
        tickets = count(1)
        self.take = Request(tickets, now)
        self.mark = Request(tickets, now)
        self.fetch = Request(tickets, now)
        self.purge = Request(tickets, now)
        self.reset = Request(tickets, now)
        self.sweep = Request(tickets, now + limits.sweep_interval_s)

    def forget(self) -> None:
        for request in (self.take, self.mark, self.fetch, self.purge, self.reset, self.sweep):
            request.forget()


class MarkPace:
    """The pause before the next mark: none after a full one, a growing one while nothing is found."""

    __slots__ = ("_excludes", "_limit", "_limits", "_pause_s")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._limit, self._excludes = 0, False
        self.quicken()

    def quicken(self) -> None:
        self._pause_s = self._limits.mark_backoff_min_s

    def begins(self, limit: int, *, excludes: bool) -> None:
        """A mark of at most so many rows. `excludes`: it leaves out the rows of some keys."""
        self._limit, self._excludes = limit, excludes

    def has_seen_all(self, found: int, *, left_out: bool) -> bool:
        """Whether a mark that found so many shows that there are no other rows. A short one shows less: one ends early
        when its values are large."""
        return not (found or left_out or self._excludes)

    def pause_s(self, found: int, lanes: int) -> float:
        """After a mark that found so many. The lanes of one process share what idle marks may cost."""
        if found:
            self.quicken()
        pause_s = 0.0 if found >= self._limit else self._pause_s
        if not found:
            self._pause_s = min(2 * self._pause_s, self._limits.mark_backoff_max_s * lanes)
        return pause_s
