"""One seed of a simulation, and the command that replays it."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from typing import Any

from tests.simulation.checkers import Violation
from tests.simulation.runtime import ended_with, in_thread


def run_seed(folder: str, seed: int, prepared: AbstractContextManager[Any]) -> Any:
    """What `run` of the scenario returns that `prepared` gives. A broken promise names the command that replays it."""
    return in_thread(lambda: _run(folder, seed, prepared))


def _run(folder: str, seed: int, prepared: AbstractContextManager[Any]) -> Any:
    logger = logging.getLogger("outbox")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    scenario = None
    try:
        with prepared as scenario, ended_with(scenario.world):
            return scenario.run()
    except (Violation, AssertionError, KeyError) as error:
        at = 0.0 if scenario is None else scenario.world.now - 100
        raise Violation(
            f"{type(error).__name__}: {error}\n  at {at:.3f} s of seed {seed}; "
            f"replay: pytest tests/simulation/{folder} --seed {seed}"
        ) from error
    finally:
        logger.setLevel(level)
