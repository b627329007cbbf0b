"""Seeded runs of the pure cores under faults, and the proof that the checkers bite."""

from __future__ import annotations

import pytest

from tests.simulation.checkers import Violation
from tests.simulation.mutations import FOUND_BY, MUTATIONS, OPERATED
from tests.simulation.scenario import run

MUTATION_SEEDS = 120


def test_promises_hold(few_seeds: range) -> None:
    for seed in few_seeds:
        run(seed)


def test_promises_hold_while_operators_pause_keys_and_give_up_records(few_seeds: range) -> None:
    for seed in few_seeds[::4]:
        run(seed, operated=True)


@pytest.mark.torture
@pytest.mark.timeout(600)
def test_promises_hold_for_many_seeds(seeds: range) -> None:
    for seed in seeds:
        run(seed)
        if seed % 4 == 0:
            run(seed, operated=True)


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(1361, id="a delivered record marked again did not hold back its successors"),
        pytest.param(7738, id="the same, after a takeover"),
        pytest.param(529, id="a confirmed membership ended at once"),
    ],
)
def test_a_bug_once_found_stays_mended(found: int) -> None:
    run(found)


@pytest.mark.parametrize("seed_again", [1, 2, 3, 8, 13])
def test_a_seed_replays_exactly(seed_again: int) -> None:
    assert run(seed_again) == run(seed_again)


def test_a_failing_seed_names_its_replay_command() -> None:
    with pytest.raises(Violation, match=r"replay: pytest tests/simulation --seed \d+"):
        caught_by("window off by one")


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_planted_bug_is_caught(mutation: str) -> None:
    with pytest.raises(Violation):
        caught_by(mutation)


@pytest.mark.parametrize("mutation", OPERATED)
def test_planted_bug_of_holds_is_caught(mutation: str) -> None:
    with pytest.raises(Violation):
        caught_by(mutation, operated=True)


def caught_by(mutation: str, *, operated: bool = False) -> None:
    """First by the seed that is known to catch it; when the cores change, by one of many others."""
    cores = (OPERATED if operated else MUTATIONS)[mutation]
    for seed in (FOUND_BY.get(mutation, 1), *range(1, MUTATION_SEEDS)):
        run(seed, cores, operated=operated)
