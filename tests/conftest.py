"""Fixtures that every room of the tests may use."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    # Here and not beside the simulation, so that it is known however pytest is started.
    parser.addoption("--seed", type=int, default=None, help="replay one seed of the simulation")
