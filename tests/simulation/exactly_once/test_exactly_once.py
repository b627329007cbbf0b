"""Seeded runs of exactly-once delivery under faults, no duplicate allowed, and the proof that the checkers bite."""

from __future__ import annotations

import pytest

from tests.simulation.checkers import Violation
from tests.simulation.exactly_once.mutations import FOUND_BY, MUTATIONS
from tests.simulation.exactly_once.scenario import run

MUTATION_SEEDS = 2_000


def test_every_record_is_seen_once_and_in_order(few_seeds: range) -> None:
    for seed in few_seeds:
        run(seed)


@pytest.mark.torture
@pytest.mark.timeout(600)
def test_every_record_is_seen_once_and_in_order_for_many_seeds(seeds: range) -> None:
    for seed in seeds:
        run(seed)


@pytest.mark.parametrize("seed_again", [1, 2, 3])
def test_a_seed_replays_exactly(seed_again: int) -> None:
    assert run(seed_again) == run(seed_again)


def test_a_failing_seed_names_its_replay_command() -> None:
    with pytest.raises(Violation, match=r"replay: pytest tests/simulation/exactly_once --seed \d+"):
        caught("cursor instead of frontier")


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_planted_bug_is_caught(mutation: str) -> None:
    with pytest.raises(Violation):
        caught(mutation)


def caught(mutation: str) -> None:
    """First by the seed that is known to catch it; when the cores change, by one of many others."""
    for seed in (FOUND_BY.get(mutation, 0), *range(MUTATION_SEEDS)):
        run(seed, MUTATIONS[mutation])
