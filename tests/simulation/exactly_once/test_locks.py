"""Under which locks the threads of a harvester wait, as the simulation sees every wait of theirs."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import pytest

from outbox.harvest.exactly_once_rounds import Rounds
from outbox.runtime.locks import LEAVES
from tests.simulation.checkers import Violation
from tests.simulation.exactly_once.process import Process
from tests.simulation.exactly_once.scenario import PLAIN, run
from tests.support.watched import Seen, Watched, waits_for

SEEDS = range(60)


@contextmanager
def watched(seen: Seen) -> Iterator[None]:
    def log(*given: object, **named: object) -> None:
        waits_for("a log handler", seen)

    with ExitStack() as stack:
        stack.enter_context(patch.object(Process, "watch", staticmethod(lambda runtime: Watched(runtime, seen))))
        for name in ("debug", "info", "warning", "error", "exception"):
            stack.enter_context(patch.object(logging.Logger, name, log))
        yield


@pytest.fixture(scope="module")
def seen() -> Seen:
    found = Seen()
    for seed in SEEDS:
        run(seed, PLAIN, lambda: watched(found))
    return found


def test_locks_are_taken_in_order_and_nothing_is_waited_for_under_the_last_ones(seen: Seen) -> None:
    assert not {wait for wait in seen.waits if wait[0] in LEAVES}
    assert ("round", "outbox-reader") in seen.taken


@pytest.mark.parametrize("forbidden", ["a pause", "a log handler"])
def test_what_is_forbidden_under_the_lock_of_the_round_is_caught(forbidden: str) -> None:
    ready = Rounds.ready

    def planted(rounds: Rounds, *given: object) -> None:
        with rounds._lanes.changed:
            ready(rounds, *given)  # type: ignore[arg-type]
            if forbidden == "a pause":
                rounds._runtime.sleep(0.0)
            else:
                logging.getLogger("outbox.harvest").info("lane_ready")

    with patch.object(Rounds, "ready", planted), pytest.raises(Violation, match=f"{forbidden} is waited for while"):
        run(0, PLAIN, lambda: watched(Seen()))
