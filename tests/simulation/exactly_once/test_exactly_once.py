"""Seeded runs of exactly-once delivery under faults, no duplicate allowed, and the proof that the checkers bite."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from outbox.core.exactly_once.pages import PageSizes
from outbox.harvest.exactly_once.crashes import CrashWatch
from tests.simulation.checkers import Violation
from tests.simulation.exactly_once.mutations import FOUND_BY, MUTATIONS
from tests.simulation.exactly_once.scenario import PLAIN, run


def test_every_record_is_seen_once_and_in_order(few_seeds: range) -> None:
    for seed in few_seeds:
        run(seed)


@pytest.mark.torture
@pytest.mark.timeout(600)
def test_every_record_is_seen_once_and_in_order_for_many_seeds(seeds: range) -> None:
    for seed in seeds:
        run(seed)


@pytest.mark.parametrize("seed_again", [1, 3, 4])
def test_a_seed_replays_exactly(seed_again: int) -> None:
    assert run(seed_again) == run(seed_again)


def test_a_failing_seed_names_its_replay_command() -> None:
    name = "cursor instead of frontier"
    with pytest.raises(Violation, match=r"replay: pytest tests/simulation/exactly_once --seed \d+"):
        MUTATIONS[name].run(FOUND_BY[name])


def test_pages_that_do_not_grow_again_are_found_beside_others_that_do() -> None:
    enlarge, made = PageSizes.enlarge, []

    def enlarge_others(sizes: PageSizes) -> None:
        made.append(sizes)
        if sizes is not made[0]:
            enlarge(sizes)

    with pytest.raises(Violation, match=r"not grown again: .*: 40\b"):
        run(155, PLAIN, lambda: patch.object(PageSizes, "enlarge", enlarge_others))


def test_a_removal_does_not_end_the_care_for_a_second_poison_record() -> None:
    calm_down, seed = CrashWatch.calm_down, 65145
    run(seed)
    with pytest.raises(Violation, match="has ended 12 processes and is not held"):
        run(seed, PLAIN, lambda: patch.object(CrashWatch, "calm_down", lambda watch, delivered: calm_down(watch, 1)))


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
