"""Seeded runs of several relays under faults: every delivery arrives or is dead with its reason, and an outage kills
none. And the proof that the checkers bite.
"""

from __future__ import annotations

import pytest

from tests.simulation.checkers import Violation
from tests.simulation.relay.mutations import FOUND_BY, MUTATIONS
from tests.simulation.relay.scenario import run

EACH = 4


def test_every_delivery_arrives_or_is_dead_with_its_reason(few_seeds: range) -> None:
    for seed in few_seeds[::EACH]:
        run(seed)


@pytest.mark.torture
@pytest.mark.timeout(1_200)
def test_every_delivery_arrives_or_is_dead_with_its_reason_for_many_seeds(seeds: range) -> None:
    for seed in seeds:
        run(seed)


@pytest.mark.parametrize("seed_again", [1, 2, 3])
def test_a_seed_replays_exactly(seed_again: int) -> None:
    assert run(seed_again) == run(seed_again)


def test_a_failing_seed_names_its_replay_command() -> None:
    name = "head of a key skipped"
    with pytest.raises(Violation, match=r"replay: pytest tests/simulation/relay --seed \d+"):
        MUTATIONS[name].run(FOUND_BY[name])


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_planted_bug_is_caught_by_the_seed_that_is_known_for_it(mutation: str) -> None:
    with pytest.raises(Violation):
        MUTATIONS[mutation].run(FOUND_BY[mutation])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_planted_bug_is_found_by_some_of_many_seeds(mutation: str) -> None:
    with pytest.raises(Violation):
        MUTATIONS[mutation].search()
