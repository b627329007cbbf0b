"""When rejected records are tried again.

A rejected attempt costs the lane its producer. So after one the lane tries held records one at a time and with pauses,
and hardly at all while it has more to send than it can. It tries at once what an operator asks for.
"""

from __future__ import annotations

from outbox.core.holds.hold import NEVER, HoldEvent, HoldState, Name, Register

_REST_S = 2.0  # between attempts that are likely to be refused
_BEHIND_S = 30.0  # after a rejection, while the lane has more to send than it can


class Trials:
    """Of one lane."""

    def __init__(self, held: Register) -> None:
        self._held = held
        self._rest_until, self.is_doubtful = 0.0, False  # an attempt was refused, so the next one is likely to be
        self._refused_at = -NEVER

    def refused(self, now: float, *, was_tried: bool, is_sure: bool) -> None:
        # Not by each that comes while others are held: then none of those would be tried as long as more are refused.
        if was_tried or not self._held.is_blocking:
            self._refused_at = now
        if was_tried or not (is_sure or self.is_doubtful):
            self._rest_until, self.is_doubtful = now + _REST_S, True

    def put_back(self, now: float, refused: Name) -> None:
        """However many records are held, trying them must not take the lane's time: those that were released together
        with the rejected one wait again."""
        tried = self._held.of(HoldState.TRYING).items()
        for name in [name for name, hold in tried if name != refused and not hold.is_wanted]:
            self._held.on(name, HoldEvent.NOT_NOW).put_off(now)

    def delivered(self) -> None:
        """Kafka accepts records again."""
        self._rest_until, self.is_doubtful, self._refused_at = 0.0, False, -NEVER

    def due(self, now: float, *, is_behind: bool) -> list[Name]:
        waiting = self._held.of(HoldState.WAITING)
        due = [name for name, hold in waiting.items() if hold.retry_at <= now]
        due.sort(key=lambda name: waiting[name].retry_at)
        wanted, others = ([n for n in due if waiting[n].is_wanted is is_wanted] for is_wanted in (True, False))
        if is_behind and now < self._refused_at + _BEHIND_S:
            return wanted
        if not self.is_doubtful:
            return due
        may_try = now >= self._rest_until and all(hold.is_wanted for hold in self._held.of(HoldState.TRYING).values())
        return wanted + others[: int(may_try)]
