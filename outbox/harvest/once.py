"""``harvest --once``: wait for a lane, let the harvester move what was visible then, stop it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from outbox.core.contract import STOPPED
from outbox.edges.postgres.counts.overview import BACKLOG_MAX, DatabaseUnreachable, Overview
from outbox.exceptions import OutboxError
from outbox.harvest.harvester import Harvester

_POLL_S = 0.05
_STUCK_S = 3.0  # nothing moves for so long while keys are held back or lanes are stopped


class NotElected(OutboxError):
    """Another harvester owned every lane for the whole time."""


class HeldBack(OutboxError):
    """What is left waits behind records that are held back, or in a lane that must not go on."""


@dataclass(frozen=True, slots=True)
class Drained:
    delivered: int
    left: int | None
    """None: the harvester was stopped before that was known."""

    def __str__(self) -> str:
        return f"delivered={self.delivered} left={told(self.left)}"


def told(left: int | None) -> str:
    """As much as is known: counting ends at BACKLOG_MAX."""
    if left is None:
        return "unknown"
    return f"{left}+" if left >= BACKLOG_MAX else f"{left}"


def drain(harvester: Harvester, wait_s: float, show: Callable[[int], None] = lambda left: None) -> Drained:
    """Move what is visible when the harvester leads. It is started here, and stopped when this returns."""
    with closing(Overview(harvester.conf.database, harvester.conf.table)) as overview, harvester:
        _wait_elected(harvester, wait_s)
        left = _wait_drained(harvester, overview, show)
    return Drained(harvester.measured.delivered, left)


def _wait_elected(harvester: Harvester, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while not harvester.leader_ids and not harvester.wait(_POLL_S):
        if time.monotonic() >= deadline:
            reason = harvester.waiting_for or (
                f"Check whether another harvester named {harvester.conf.name!r} runs, and whether PostgreSQL and "
                "Kafka answer."
            )
            raise NotElected(f"This harvester got no lane within {wait_s:g} s. {reason} To wait longer, raise --wait.")


def _wait_drained(harvester: Harvester, overview: Overview, show: Callable[[int], None]) -> int | None:
    """How many records are left, because the harvester was stopped meanwhile; None: nobody could tell any more."""
    until = _ask(harvester, overview.newest)
    if until is None:
        return None
    moved_at, before = time.monotonic(), (-1, 0)
    while left := _ask(harvester, lambda: overview.waiting(until)):
        # Counting ends at BACKLOG_MAX, so beyond it deliveries tell that something moves. Below it they do not count:
        # they may be of records that came later, and would keep a drain from ever ending.
        now = left, harvester.measured.delivered if left >= BACKLOG_MAX else 0
        if now != before:
            moved_at, before = time.monotonic(), now
            show(left)
        if harvester.wait(_POLL_S):
            break
        if time.monotonic() - moved_at > _STUCK_S and (reason := _stuck(harvester)):
            raise HeldBack(f"{told(left)} records stay in the table, {reason}. Read the log.")
    return left


def _stuck(harvester: Harvester) -> str:
    """What only an operator, or time, can change; empty: nothing."""
    statistics = harvester.statistics
    stopped = [str(lane) for lane, found in sorted(statistics.items()) if found.phase == STOPPED]
    held = sum(found.held for found in statistics.values())
    if stopped:
        return f"because lane {', '.join(stopped)} is stopped and waits for your decision"
    if held:
        return f"because {held} keys, records or topics are held: rejected by Kafka, poison, paused or being edited"
    return ""


def _ask(harvester: Harvester, question: Callable[[], int]) -> int | None:
    """The answer, also through an outage of PostgreSQL; None when the harvester is stopped before there is one."""
    while not harvester.wait(0):
        try:
            return question()
        except DatabaseUnreachable:
            harvester.wait(20 * _POLL_S)
    return None
