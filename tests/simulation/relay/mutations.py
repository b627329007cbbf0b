"""Planted bugs of relays: each is the product, or the simulated table, without one of its rules. All are caught."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outbox.core.relay import destination
from outbox.core.relay.charging import Payer
from outbox.core.relay.destination import Destination
from outbox.core.relay.results import AttemptCause
from outbox.core.relay.turns import Delivery, Turns
from outbox.relay.worker import RelayWorker
from tests.simulation.planted import PlantedBug, around
from tests.simulation.relay.scenario import DYING, ORDERED, OUTAGES, THEMES, Outcome, run
from tests.simulation.relay.table import Rules


@dataclass(frozen=True)
class Planted(PlantedBug):
    def run(self, seed: int) -> Outcome:
        return run(seed, self.applied, self.rules)


def _charge_always(pay: Any, cause: AttemptCause, **given: Any) -> Payer:
    found: Payer = pay(cause, **given)
    return Payer.MESSAGE if cause in (AttemptCause.DESTINATION, AttemptCause.MESSAGE) else found


def _ask_for_no_success_since(pay: Any, cause: AttemptCause, **given: Any) -> Payer:
    found: Payer = pay(cause, **given)
    is_vouched = cause is AttemptCause.DESTINATION and found is Payer.NEITHER
    return Payer.MESSAGE if is_vouched else found


def _go_on_behind_a_failure(ended: Any, turns: Turns, delivery: Delivery, *, is_through: bool) -> Sequence[Delivery]:
    found: Sequence[Delivery] = ended(turns, delivery, is_through=True)
    return found


def _trust_the_lease(hand_over: Any, worker: RelayWorker, found: Mapping[str, Sequence[Delivery]], grants: Any) -> None:
    endless = {name: [replace(one, until=float("inf")) for one in leased] for name, leased in found.items()}
    hand_over(worker, endless, grants)


_OUTAGES, _ORDERED, _DYING = (OUTAGES, THEMES), (ORDERED, THEMES), (DYING, THEMES)

MUTATIONS: dict[str, Planted] = {
    "settlement without token": Planted(rules=Rules(compares_token=False)),
    "times of the relay's clock": Planted(rules=Rules(uses_own_clock=False)),
    "attempt given back without guard": Planted(rules=Rules(compares_charge=False)),
    "head of a key skipped": Planted(rules=Rules(begins_with_head=False), theme=_ORDERED),
    "two probes": Planted(rules=Rules(compares_version=False), theme=_OUTAGES),
    "attempt charged in an outage": Planted((around(destination, "payer", _charge_always),), theme=_OUTAGES),
    "attempt charged at the edge of an outage": Planted(
        (around(destination, "payer", _ask_for_no_success_since),), theme=_OUTAGES
    ),
    "a probe of several deliveries": Planted(((Destination, "_is_probing", False),), theme=_OUTAGES),
    "later deliveries of a failed key are sent": Planted(
        (around(Turns, "ended", _go_on_behind_a_failure),), theme=_ORDERED
    ),
    "end of the lease not compared": Planted((around(RelayWorker, "_hand_over", _trust_the_lease),)),
}
FOUND_BY = {
    "settlement without token": 5,
    "times of the relay's clock": 0,
    "attempt given back without guard": 35,
    "head of a key skipped": 1,
    "two probes": 0,
    "attempt charged in an outage": 40,
    "attempt charged at the edge of an outage": 40,
    "a probe of several deliveries": 0,
    "later deliveries of a failed key are sent": 1,
    "end of the lease not compared": 5,
}
