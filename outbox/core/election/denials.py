"""What a process does whose member of the election is refused by the brokers. Pure."""

from __future__ import annotations

from enum import Enum


class Denial(Enum):
    BEARABLE = "it is not refused, or not for long"
    RENEW = "another member is to try the secrets that are given now"
    GIVE_UP = "the other member was refused too"


class Refusals:
    def __init__(self) -> None:
        self._renewed_at = float("-inf")

    def judge(self, denied_s: float, now: float, patience_s: float) -> Denial:
        """The member is refused for so long; 0: it is not. `patience_s`: after which another one tries."""
        if denied_s < patience_s:
            return Denial.BEARABLE
        began_at = now - denied_s
        return Denial.GIVE_UP if began_at < self._renewed_at + patience_s else Denial.RENEW

    def renewed(self, now: float) -> None:
        """From now on there is another member."""
        self._renewed_at = now
