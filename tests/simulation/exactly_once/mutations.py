"""Planted bugs of exactly-once delivery: each leaves out one rule. The suite catches all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from outbox.core import verdict
from outbox.core.flights import Flights, Plan, Share, Standing
from outbox.core.frontier import Frontier, Snapshot
from outbox.core.verdict import Facts, NothingToDo, Rows, Verdict
from tests.simulation.exactly_once.database import Page
from tests.simulation.exactly_once.rounds import LaneState, Rounds
from tests.simulation.exactly_once.scenario import Cores


class Cursor(Frontier):
    """Reads what is above the last id."""

    def start(self) -> int:
        return self.read_to

    def missed_from(self, look: int, snapshot: Snapshot, sequence: int) -> int | None:
        return None


class NothingHasEnded(Frontier):
    """Looks back only to bounds nearby."""

    @staticmethod
    def _ended(last: Snapshot, now: Snapshot) -> list[int]:
        return []


class ExcludesAfterTheSelect(Rounds):
    """Asks what is in flight when the rows are there."""

    def _excluded(self, plan: Plan, look: int) -> Sequence[int]:
        return ()

    def _looked_at(self, page: Page) -> Page:
        flying = set(self._flights.plan(self.lanes.values(), 1).excluded_above(-1))
        return replace(page, rows=[stored for stored in page.rows if stored.row[0] not in flying])


class StopsForEver(Rounds):
    """A lane that could not be purged once is not heard again, although an operator has settled it."""

    def ready(self, lane: LaneState, batch: int, state: verdict.State) -> None:
        stops = dict(self._last_ticket.stops) if self._last_ticket is not None else {}
        super().ready(lane, batch, state)
        if self._last_ticket is not None:
            self._last_ticket.stops.update(stops)


class PlansForEveryLane(Flights):
    """Leaves out what any lane of the process has in flight."""

    def plan(self, lanes: Iterable[Standing], limit: int) -> Plan:
        return replace(super().plan(lanes, limit), flights=tuple(share.ids for share in self._batches))


class EndsAtTheCommit(Flights):
    def committed(self, share: Share, batch: int) -> None:
        self.give_back(share)


class ExcludesForEveryLane(Rounds):
    def __init__(self, process: Any) -> None:
        super().__init__(process)
        self._flights = PlansForEveryLane()


class FliesOnlyToTheCommit(Rounds):
    def __init__(self, process: Any) -> None:
        super().__init__(process)
        self._flights = EndsAtTheCommit()


def _resends(facts: Facts) -> Verdict:
    """As if a transaction of unknown outcome had failed."""
    return NothingToDo(facts.entry.batch if facts.entry is not None else 0)


def _by_ids(entry: Any, count: int, digest: int, newest: Any) -> Rows:
    return Rows.ALL if count else Rows.NONE


def _by_the_clock(entry: Any, count: int, digest: int, newest: Any) -> Rows:
    return verdict.found_rows(replace(entry, newest=None), count, digest, newest)


def _changed(**functions: Any) -> Any:
    return SimpleNamespace(
        takeover=functions.get("takeover", verdict.takeover), found_rows=functions.get("found_rows", verdict.found_rows)
    )


PLAIN = Cores()
MUTATIONS: dict[str, Cores] = {
    "ledger entry first": replace(PLAIN, entry_first=True, renews=False),
    "no renewal after trouble": replace(PLAIN, renews=False),
    "purge by id without guard m": replace(PLAIN, guarded=False),
    "takeover without waiting for the stable offset": replace(PLAIN, waits_for_stable=False),
    "cursor instead of frontier": replace(PLAIN, frontier=Cursor),
    "ended transactions are not looked back for": replace(PLAIN, frontier=NothingHasEnded),
    "exclusions copied after the select": replace(PLAIN, rounds=ExcludesAfterTheSelect),
    "no flush": replace(PLAIN, flushes=False),
    "the frontier is not reset for a lane that joins": replace(PLAIN, resets=False),
    "commit before the purge of the batch before": replace(PLAIN, awaits_purge=False),
    "in flight only until the commit": replace(PLAIN, rounds=FliesOnlyToTheCommit),
    "a settled stop is kept": replace(PLAIN, rounds=StopsForEver),
    "what other lanes have in flight is left out": replace(PLAIN, rounds=ExcludesForEveryLane),
    "producer reused after an error": replace(PLAIN, reuses_producers=True),
    "refused record swallowed": replace(PLAIN, swallows_refusals=True),
    "a page dealt out before a refusal is sent as it is": replace(PLAIN, looks_again=False),
    "takeover sends the last batch again": replace(PLAIN, verdicts=_changed(takeover=_resends)),
    "rows compared by ids alone": replace(PLAIN, verdicts=_changed(found_rows=_by_ids)),
    "times of records compared with the clock": replace(PLAIN, verdicts=_changed(found_rows=_by_the_clock)),
    "lanes opened before the old ones are settled": replace(PLAIN, settles=False),
    "purge over a new connection without a look": replace(PLAIN, compares_after_connect=False),
    "a forgotten change of the count is not noticed": replace(PLAIN, heeds_changes=False),
}

FOUND_BY: dict[str, int] = {
    "ledger entry first": 150,
    "no renewal after trouble": 152,
    "purge by id without guard m": 194,
    "takeover without waiting for the stable offset": 70,
    "exclusions copied after the select": 21,
    "commit before the purge of the batch before": 20,
    "a settled stop is kept": 321,
    "a page dealt out before a refusal is sent as it is": 127,
    "what other lanes have in flight is left out": 44,
    "rows compared by ids alone": 26,
    "lanes opened before the old ones are settled": 47,
    "purge over a new connection without a look": 236,
    "a forgotten change of the count is not noticed": 761,
}
"""Seeds that catch the rarer ones; only a short cut."""
