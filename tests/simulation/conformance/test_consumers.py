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
from tests.simulation.conformance.frame import calls_in, calls_of, for_each, ignored_by
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


@for_each(CASES)
def test_the_simulated_server_does_what_a_case_says(case: Case) -> None:
    simulated(case)


@for_each(CASES)
def test_both_servers_answer_the_same(case: Case, url: str) -> None:
    found = real(case, url).lines
    assert simulated(case).lines == found


def test_every_method_of_a_port_is_called() -> None:
    wanted = calls_of(PORTS)
    assert wanted - NOT_SIMULATED.keys() == calls_in(CASES, simulated)
    assert wanted >= NOT_SIMULATED.keys()
    assert len(NOT_SIMULATED) <= NOT_SIMULATED_MAX


def test_every_argument_counts() -> None:
    """A simulated call uses all its arguments. But no message goes to a topic for errors, and no id becomes old."""
    found = (database.Positions, database.Held, database.Seen, database.Owners, database.Transaction)
    assert ignored_by(found, PORTS, besides=("consumer", "session")) == IGNORED
