"""The simulated table with marks answers as PostgreSQL does, call by call: one script for both.

Scenarios inject the faults of servers and connections. These tests do not compare them.
"""

from __future__ import annotations

from collections.abc import Callable

from outbox.harvest.at_least_once import ports as mark_servers
from outbox.harvest.exactly_once import ports
from tests.simulation.conformance.frame import calls_in, calls_of, for_each
from tests.simulation.conformance.marks import CASES, Script, real, simulated

Case = Callable[[Script], None]
PORTS = (mark_servers.MarkStatements, mark_servers.HoldStatements, mark_servers.MarkDatabasePort, ports.LeasePort)


@for_each(CASES)
def test_the_simulated_table_does_what_a_case_says(case: Case) -> None:
    simulated(case)


@for_each(CASES)
def test_both_tables_answer_the_same(case: Case, url: str) -> None:
    found = real(case, url).lines
    assert simulated(case).lines == found


def test_every_method_of_a_port_is_called() -> None:
    assert calls_in(CASES, simulated) == calls_of(PORTS)
