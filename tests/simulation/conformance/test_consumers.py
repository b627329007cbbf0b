"""The simulated PostgreSQL of consumers answers as the real one does, call by call: one script for both.

Scenarios inject the faults of servers and connections. These tests do not compare them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outbox.consumers import ports
from tests.simulation.conformance.consumer_cases import CASES
from tests.simulation.conformance.consumers import Script, real, simulated
from tests.simulation.conformance.test_conformance import ignored
from tests.simulation.consumers import database
from tests.support.databases import fresh_database

Case = Callable[[Script], None]
PORTS = (ports.PositionsPort, ports.HeldPort, ports.SeenPort, ports.OwnersPort, ports.TransactionPort)
NOT_SIMULATED = {("TransactionPort", "cancel"): "no statement waits for a cancellation"}
"""The simulated server does nothing there. An entry goes when a case calls it; none may be added."""
NOT_SIMULATED_MAX = 1
IGNORED = {("failure", "is_of_function")}  # a function has no other server, and raises none of its errors
"""Arguments that a simulated call ignores, besides the consumer: there is one. None may be added."""


@pytest.fixture(scope="module")
def url(postgres: object, migrated_template: str, django_db_blocker: Any) -> Iterator[str]:
    with fresh_database(os.environ["DATABASE_URL"], migrated_template) as url, django_db_blocker.unblock():
        yield url


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_simulated_server_does_what_a_case_says(case: Case) -> None:
    simulated(case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_both_servers_answer_the_same(case: Case, url: str) -> None:
    found = real(case, url).lines
    assert simulated(case).lines == found


def test_every_method_of_a_port_is_called() -> None:
    wanted = {
        (port.__name__, name)
        for port in PORTS
        for name, found in vars(port).items()
        if callable(found) and not name.startswith("_")
    }
    called = {call for case in CASES for call in simulated(case).called}
    assert wanted - NOT_SIMULATED.keys() == called
    assert wanted >= NOT_SIMULATED.keys()
    assert len(NOT_SIMULATED) <= NOT_SIMULATED_MAX


def test_every_argument_counts() -> None:
    """A simulated call uses all its arguments. But no message goes to a topic for errors, and no id becomes old."""
    simulated_ports = (database.Positions, database.Held, database.Seen, database.Owners, database.Transaction)
    left_out = {
        (name, given)
        for port in simulated_ports
        for name, found in vars(port).items()
        for given in ignored(found) - {"consumer", "session"}
        if not name.startswith("_")
    }
    assert left_out == IGNORED
