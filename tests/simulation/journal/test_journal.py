"""Seeded runs of journals under faults: bytes and rows stand or fall together. And the proof that the checkers bite."""

from __future__ import annotations

import pytest

from outbox.core.journal.append import Append
from outbox.core.journal.values import AppendRefusal, Conditions, JournalState, Staged
from outbox.journal.upload import Upload
from tests.simulation.checkers import Violation
from tests.simulation.journal.mutations import FOUND_BY, MUTATIONS
from tests.simulation.journal.scenario import JournalWorld, run, sized
from tests.simulation.journal.store import StoreClient
from tests.simulation.runtime import Simulated, in_thread

EACH = 3
"""Not a divisor of the number of themes: all of them are run."""


def test_bytes_and_rows_stand_or_fall_together(few_seeds: range) -> None:
    for seed in few_seeds[::EACH]:
        run(seed)


@pytest.mark.torture
@pytest.mark.timeout(600)
def test_bytes_and_rows_stand_or_fall_together_for_many_seeds(seeds: range) -> None:
    for seed in seeds:
        run(seed)


@pytest.mark.parametrize("seed_again", [1, 2, 3])
def test_a_seed_replays_exactly(seed_again: int) -> None:
    assert run(seed_again) == run(seed_again)


def test_a_failing_seed_names_its_replay_command() -> None:
    name = "stages are left"
    with pytest.raises(Violation, match=r"replay: pytest tests/simulation/journal --seed \d+"):
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


@pytest.mark.parametrize(("replicas", "is_staged"), [(1, True), (2, False)])
def test_a_store_that_never_answers_leaves_after_the_limit_or_ends_the_append(replicas: int, is_staged: bool) -> None:
    def scenario() -> tuple[object, float]:
        world = JournalWorld(0)
        world.zones = {"a": "east", "b": "west"}
        process = Hanging(world)
        state = JournalState("orders", replicas=replicas, stores=("a", "b"))
        append = Append("00000000-0000-4000-8000-000000000000", state, world.zones, Conditions())
        append.resolved(("a", "b"), {})
        append.checked()
        append.opened("2026/01/02")
        found: list[object] = []

        def send() -> None:
            upload = Upload(append, process.stores, process.runtime, stall_s=5.0)
            found.append((upload.send(iter([b"x" * 8]), lambda: True), world.now - began))

        began = world.now
        process.runtime.spawn(send)
        world.run_until(world.now + 60.0)
        return found[0]  # type: ignore[return-value]

    class Hanging:
        def __init__(self, world: JournalWorld) -> None:
            self.world, self.runtime = world, Simulated(world)
            stores = dict.fromkeys("ab", world.stores["a"])
            self.stores = {name: StoreClient(self, store) for name, store in stores.items()}
            self.stores["b"].ask = lambda act: self.runtime.sleep(1e6)  # type: ignore[method-assign]

    with sized():
        result, took_s = in_thread(scenario)
    assert isinstance(result, Staged if is_staged else AppendRefusal)
    assert 5.0 <= took_s < 6.0
    text = "" if isinstance(result, Staged) else result.text
    assert is_staged or "b: it has not answered for 5 s" in text
