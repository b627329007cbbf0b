"""The simulated table of relays answers as a real one does, call by call: one script for both.

Scenarios inject the faults of servers and connections. These tests do not compare them.
"""

from __future__ import annotations

from collections.abc import Callable

from outbox.relay import ports
from tests.simulation.conformance.frame import calls_in, calls_of, for_each, ignored_by
from tests.simulation.conformance.relay import Script, real, simulated
from tests.simulation.conformance.relay_cases import CASES
from tests.simulation.relay.table import SimulatedDeliveries

Case = Callable[[Script], None]
NOT_ASKED = {("DeliveriesPort", "close")}
"""The script closes its connection at the end."""


@for_each(CASES)
def test_the_simulated_table_does_what_a_case_says(case: Case) -> None:
    simulated(case)


@for_each(CASES)
def test_both_tables_answer_the_same(case: Case, url: str) -> None:
    found = real(case, url).lines
    assert simulated(case).lines == found


def test_every_method_of_the_port_is_called() -> None:
    assert calls_of([ports.DeliveriesPort]) - NOT_ASKED == calls_in(CASES, simulated)


def test_every_argument_counts() -> None:
    assert ignored_by([SimulatedDeliveries], [ports.DeliveriesPort]) == set()
