"""The simulated table with marks answers as PostgreSQL does, call by call: one script for both.

Scenarios inject the faults of servers and connections. These tests do not compare them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from outbox.harvest.at_least_once import ports as mark_servers
from outbox.harvest.exactly_once import ports
from tests.simulation.conformance.marks import CASES, Script, real, simulated
from tests.support.databases import fresh_database

Case = Callable[[Script], None]
PORTS = (mark_servers.MarkStatements, mark_servers.HoldStatements, mark_servers.MarkDatabasePort, ports.LeasePort)


@pytest.fixture(scope="module")
def url(postgres: object) -> Iterator[str]:
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        yield url


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_simulated_table_does_what_a_case_says(case: Case) -> None:
    simulated(case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_both_tables_answer_the_same(case: Case, url: str) -> None:
    found = real(case, url).lines
    assert simulated(case).lines == found


def test_every_method_of_a_port_is_called() -> None:
    wanted = {
        (port.__name__, name)
        for port in PORTS
        for name, found in vars(port).items()
        if callable(found) and not name.startswith("_")
    }
    assert wanted == {call for case in CASES for call in simulated(case).called}
