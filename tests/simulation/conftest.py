"""Which seeds are run: 200 by default, 10,000 under `-m torture`, one of them with `--seed N`."""

from __future__ import annotations

import pytest

SEEDS = 200
TORTURE_SEEDS = 10_000
CHUNK = 500
FEW = 20


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seed = metafunc.config.getoption("--seed")
    if "few_seeds" in metafunc.fixturenames:
        few = [range(s, s + FEW) for s in range(0, SEEDS, FEW)] if seed is None else [range(seed, seed + 1)]
        metafunc.parametrize("few_seeds", few, ids=[f"{c.start}-{c.stop - 1}" for c in few])
    if "seeds" in metafunc.fixturenames:
        starts = range(SEEDS, SEEDS + TORTURE_SEEDS, CHUNK)
        chunks = [range(s, s + CHUNK) for s in starts] if seed is None else [range(seed, seed + 1)]
        metafunc.parametrize("seeds", chunks, ids=[f"{c.start}-{c.stop - 1}" for c in chunks])
