"""Which seeds are run: 200 by default, 10,000 under `-m torture`, one with `--seed N`."""

from __future__ import annotations

import pytest

SEEDS = 200
TORTURE_SEEDS = 10_000
CHUNK = 500


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="replay one seed of the simulation")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seed = metafunc.config.getoption("--seed", None)
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(SEEDS) if seed is None else [seed])
    if "chunk" in metafunc.fixturenames:
        metafunc.parametrize("chunk", range(SEEDS, SEEDS + TORTURE_SEEDS, CHUNK))
