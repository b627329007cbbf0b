"""The simulated clients of the election and the simulated producer do as those of confluent-kafka: one script for both.

Scenarios inject the faults of members and connections (evictions, sessions that end, records that arrive late). These
tests do not compare them.
"""

from __future__ import annotations

from collections.abc import Callable

from outbox.edges.kafka.at_least_once import idempotent
from outbox.election import ports
from tests.simulation.conformance.clients import CASES, Script, real, simulated
from tests.simulation.conformance.frame import calls_in, calls_of, for_each

Case = Callable[[Script], None]
PORTS = (
    ports.GroupConsumer,
    ports.HeartbeatReader,
    ports.HeartbeatProducer,
    ports.ElectionClients,
    idempotent.Client,
)


@for_each(CASES)
def test_the_simulated_clients_do_what_a_case_says(case: Case) -> None:
    simulated(case)


@for_each(CASES)
def test_both_sides_answer_the_same(case: Case, bootstrap_servers: str) -> None:
    found = real(case, bootstrap_servers).lines
    assert simulated(case).lines == found


def test_every_method_of_a_port_is_called() -> None:
    assert calls_in(CASES, simulated) >= calls_of(PORTS)
