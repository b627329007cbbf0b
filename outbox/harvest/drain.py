"""``harvest --once``: wait for a lane, let the harvester move what was visible then, stop it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from outbox.edges.overview import DatabaseUnreachable, Overview
from outbox.exceptions import OutboxError
from outbox.harvest.daemon import Harvester
from outbox.harvest.lanes import STOPPED

_POLL_S = 0.05
_STUCK_S = 3.0  # nothing moves for so long while keys are held back or lanes are stopped


class NotElected(OutboxError):
    """Another harvester owned every lane for the whole time."""


class HeldBack(OutboxError):
    """What is left waits behind records that Kafka refused, or in a lane that must not go on."""


@dataclass(frozen=True, slots=True)
class Drained:
    delivered: int
    left: int


def drain(harvester: Harvester, wait_s: float, show: Callable[[int], None] = lambda left: None) -> Drained:
    """Move what is visible when the harvester leads. It is started here, and stopped when this returns."""
    with closing(Overview(harvester.conf.database, harvester.conf.table)) as overview, harvester:
        _wait_elected(harvester, wait_s)
        if harvester.wait(0):
            return Drained(0, 0)
        left = _wait_drained(harvester, overview, show)
        delivered = sum(found.delivered for found in harvester.statistics.values())
    return Drained(delivered, left)


def _wait_elected(harvester: Harvester, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while not harvester.leader_ids and not harvester.wait(_POLL_S):
        if time.monotonic() >= deadline:
            reason = harvester.waiting_for or (
                f"Does another harvester named {harvester.conf.name!r} run, or is a server away?"
            )
            raise NotElected(f"No lane was acquired within {wait_s:g} s. {reason} It may take longer: raise --wait.")


def _wait_drained(harvester: Harvester, overview: Overview, show: Callable[[int], None]) -> int:
    """The number of records that are left, because the harvester was stopped meanwhile."""
    until = _ask(harvester, overview.newest)
    moved_at, before = time.monotonic(), -1
    while left := _ask(harvester, lambda: overview.waiting(until)):
        if left != before:
            moved_at, before = time.monotonic(), left
            show(left)
        if harvester.wait(_POLL_S):
            break
        if time.monotonic() - moved_at > _STUCK_S and (reason := _stuck(harvester)):
            raise HeldBack(f"{left} records stay in the table, {reason}; see the log.")
    return left


def _stuck(harvester: Harvester) -> str:
    """What only an operator, or time, can change; empty: nothing."""
    statistics = harvester.statistics
    stopped = [str(lane) for lane, found in sorted(statistics.items()) if found.phase == STOPPED]
    held = sum(found.held for found in statistics.values())
    if stopped:
        return f"because lane {', '.join(stopped)} is stopped and waits for an operator's decision"
    return f"held back by {held} that Kafka refused" if held else ""


def _ask(harvester: Harvester, question: Callable[[], int]) -> int:
    """The answer, also through an outage of PostgreSQL; 0 when the harvester is stopped before there is one."""
    while not harvester.wait(0):
        try:
            return question()
        except DatabaseUnreachable:
            harvester.wait(20 * _POLL_S)
    return 0
