from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.databases import fresh_database

pytest.register_assert_rewrite(
    *(
        f"tests.simulation.conformance.{name}"
        for name in ("cases", "consumer_cases", "consumer_topics", "graph_cases", "graphs", "relay_cases")
    )
)


@pytest.fixture(scope="module")
def url(postgres: object) -> Iterator[str]:
    """Of an empty database."""
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        yield url
